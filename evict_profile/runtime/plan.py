"""A plan: which nodes are verified, and what that is expected to bring and to cost."""

from msgspec import Struct
from torch import Tensor


class Plan(Struct, frozen=True):
    """What a truncator decided for one step.

    On a GPU the numbers are tensors; `float(...)` reads one, and waits for it.

    Attributes:
        widths: int64 [B], tokens of each request, its root included.
        keep: bool [B, N], closed under ancestors. Where tiers are filled or all
            requests get one width it can mark a node of probability 0, padding too:
            that is a place to run, with whatever the engine fills it.
        tokens: tokens verified in all, before padding to the ladder.
        claimed: draft tokens among them that their scores say will be accepted.
        step_cost_us: the table's price of the parts of the step in `includes`; it means
            nothing where there are none, and is NaN on the CPU.
        refused: whether `path_prob` held no probabilities, so that all that is priced
            is verified; on the CPU that is an error instead.
        trust: share of what scores claim that was counted on.
        caveats: in what the price is not the table's own.
        includes: parts of the step that are priced: "verify", and "draft" and "fixed"
            where the table knows them and the plan was given depths; none where the
            width is fixed.
    """

    widths: Tensor
    keep: Tensor
    tokens: int | Tensor
    claimed: float | Tensor
    step_cost_us: float | Tensor
    refused: bool | Tensor
    trust: float
    caveats: tuple[str, ...]
    includes: tuple[str, ...] = ("verify",)

    @property
    def whole_step(self) -> bool:
        """Whether nothing of the step is left unpriced."""
        return "draft" in self.includes

    @property
    def expected_tokens(self) -> float:
        """Tokens expected to be committed over the batch; never more than verified."""
        expected = self.widths.shape[0] + self.trust * float(self.claimed)
        return min(expected, float(self.tokens))

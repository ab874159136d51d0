"""Prices by tokens alone: one curve out of the staircases of several batches.

SGLang and vLLM look a step up by the tokens it verifies in all, roots included. A
table has a staircase for each batch, and a batch asks for a root from each request,
so its staircase speaks from `batch` tokens on. Where several speak, the curve takes
the smallest batch: it stays on one staircase as long as it can, and so keeps the
price of the next token, which is what a scheduler weighs. SGLang's own profiler also
measures a token count at the fewest requests that make it. docs/interop.md compares
it with the largest batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from evict_profile.errors import TableError
from evict_profile.table import CostTable, Staircase


@dataclass(frozen=True)
class TokenCurve:
    """Step cost by tokens in all.

    Attributes:
        tokens: increasing; counts that no measured batch makes are absent.
        apart: largest relative difference, over the staircases, between what a
            staircase says and what the curve says at the same tokens.
    """

    tokens: tuple[int, ...]
    step_cost_us: tuple[float, ...]
    apart: float

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """First and last token count of each stretch that was not measured."""
        steps = pairwise(self.tokens)
        return tuple((low + 1, high - 1) for low, high in steps if high - low > 1)


def staircases_at(table: CostTable, context: int | None) -> tuple[Staircase, ...]:
    """The staircases at one context, smallest batch first.

    The default is the smallest context: SGLang's profiler measures short prompts too.

    Raises:
        TableError: no such context, or the steps hold more than verification.
    """
    contexts = sorted({stairs.context for stairs in table.staircases})
    wanted = contexts[0] if context is None else context
    if wanted not in contexts:
        raise TableError(
            f"no staircase at context {wanted}; this table has context "
            f"{', '.join(map(str, contexts))}: name one of them with --context"
        )
    found = [stairs for stairs in table.staircases if stairs.context == wanted]
    if any(stairs.includes != ("verify",) for stairs in found):
        raise TableError(
            f"the staircases at context {wanted} hold more than verification, which "
            "this exporter cannot take apart; use a table of verification alone"
        )
    return tuple(sorted(found, key=lambda stairs: stairs.batch))


def measured_tokens(stairs: Staircase) -> range:
    """Token counts that the batch of this staircase can ask for."""
    return range(stairs.batch, len(stairs.step_cost_us))


def token_curve(staircases: Sequence[Staircase]) -> TokenCurve:
    """The curve of staircases at one context, smallest batch first."""
    cost_us: dict[int, float] = {}
    for stairs in staircases:
        for tokens in measured_tokens(stairs):
            cost_us.setdefault(tokens, stairs.step_cost_us[tokens])
    apart = max(
        abs(cost_us[tokens] / stairs.step_cost_us[tokens] - 1.0)
        for stairs in staircases
        for tokens in measured_tokens(stairs)
    )
    return TokenCurve(tuple(cost_us), tuple(cost_us.values()), apart)

"""A fixed width in SGLang, with nodes ranked by conditional acceptance.

Depth is the server's own --speculative-num-steps, and its draft tokens are what is
ranked. A fixed width by path probability needs no plug-in:
--speculative-num-draft-tokens is one.
"""

from functools import lru_cache

from torch import Tensor

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.runtime import CostTable, Truncator
from evict_profile.runtime.conditional import ConditionalScorer


class FixedChooser:
    """One width for every step, its nodes ranked by conditional acceptance.

    No price is read and nothing is copied to the host: nodes are ranked where they lie.
    """

    def __init__(self, table: CostTable, width: int, draft_tokens: int) -> None:
        """As greedy decoding and target-only sampling allow; see `Chooser`.

        Raises:
            ConfigError: the table knows no conditional acceptance, or so many tokens
                are not drafted.
            PlanError: it would not be lossless.
        """
        if table.acceptance is None or table.acceptance.conditional is None:
            raise ConfigError(
                "EVICT_PROFILE_WIDTH ranks by conditional acceptance, and "
                f"{table.path} has none; measure it with evict-profile calibrate, or "
                "set the width by --speculative-num-draft-tokens alone"
            )
        if width > draft_tokens:
            raise ConfigError(
                f"EVICT_PROFILE_WIDTH={width}, and the server drafts {draft_tokens} "
                "tokens with the root; give fewer, or raise "
                "--speculative-num-draft-tokens"
            )
        self.width = width
        # Refused where cutting by scores is not lossless.
        Truncator(
            table,
            drafts="topk",
            acceptance="target-only",
            objective="fixed",
            width=width,
            depth=0,
        )
        scorer = ConditionalScorer(table.acceptance.conditional)
        self._worth_of = lru_cache(None)(scorer.on_device)

    def worth(self, drafted: Drafted, levels: int) -> Tensor:
        """Acceptance of each node, float64 [B, M], on the device of the trees."""
        device = drafted.path_prob.device
        return self._worth_of(device, levels)(drafted.path_prob, drafted.parent)

"""A fixed width in SGLang, with nodes ranked by conditional acceptance.

No price is read and nothing is copied to the host. Depth is the server's own
--speculative-num-steps, and its draft tokens are what is ranked. A fixed width by path
probability needs no plug-in: --speculative-num-draft-tokens is one.
"""

from evict_profile.errors import ConfigError
from evict_profile.runtime import CostTable, Truncator


def check_fixed(table: CostTable, width: int, draft_tokens: int) -> None:
    """Refuse a width that cannot be verified, or that nothing would rank.

    As greedy decoding and target-only sampling allow; see `decision.Chooser`.

    Raises:
        ConfigError: the table knows no conditional acceptance, or so many tokens are
            not drafted.
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
    # Refused where cutting by scores is not lossless.
    Truncator(
        table,
        drafts="topk",
        acceptance="target-only",
        objective="fixed",
        width=width,
        depth=0,
    )

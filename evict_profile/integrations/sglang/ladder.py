"""Widths that a server verifies: one attention backend and one set of graphs each.

Asked for, or those that the table was measured with; each must have a price, unless
there is one width and nothing to decide.
"""

from collections.abc import Sequence

from evict_profile.errors import ConfigError
from evict_profile.runtime import CostTable

DEFAULT_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""For a table that was measured without captured graphs, which has no ladder."""


def ladder_of(
    table: CostTable, draft_tokens: int, asked: Sequence[int] | None
) -> tuple[int, ...]:
    """Widths to choose from: asked for, or the table's; none above the whole tree."""
    priced = table.axes.ladder or tuple(range(1, table.fit.domain["width"][1] + 1))
    wanted = asked or table.axes.ladder or DEFAULT_LADDER
    if unpriced := [width for width in asked or () if width not in priced]:
        known = ", ".join(map(str, table.axes.ladder)) or f"1 to {priced[-1]}"
        raise ConfigError(
            f"EVICT_PROFILE_LADDER has width {unpriced[0]}, and {table.path} prices "
            f"widths {known}; measure it, or leave it out"
        )
    if asked and asked[-1] > draft_tokens:
        raise ConfigError(
            f"EVICT_PROFILE_LADDER has width {asked[-1]}, and the server drafts "
            f"{draft_tokens} tokens with the root; leave it out, or raise "
            "--speculative-num-draft-tokens"
        )
    widths = {width for width in wanted if width in priced and width <= draft_tokens}
    if draft_tokens in priced and not asked:
        widths.add(draft_tokens)
    if not widths:
        raise ConfigError(
            f"{table.path} prices no width up to the server's {draft_tokens} draft "
            "tokens; measure smaller widths, or raise --speculative-num-draft-tokens"
        )
    return tuple(sorted(widths))


def fixed_ladder(table: CostTable, width: int, draft_tokens: int) -> tuple[int]:
    """The one width that every step verifies, ranked by conditional acceptance.

    No price is read and nothing is copied to the host. Depth is the server's own
    --speculative-num-steps. A fixed width by path probability needs no plug-in.
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
    return (width,)

"""Widths are asked for or the table's, and only those with a price are decided on."""

import pytest

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.ladder import fixed_ladder, ladder_of
from evict_profile.records import replace

LADDER = (1, 2, 4, 8, 16)


def with_ladder(table, *ladder):
    """The table, as if it was measured at captured widths."""
    return replace(table, axes=replace(table.axes, ladder=ladder))


@pytest.mark.parametrize(
    ("captured", "draft_tokens", "asked", "ladder"),
    [
        (LADDER, 9, None, (1, 2, 4, 8)),
        (LADDER, 16, None, LADDER),
        # Without captured widths the default as far as it is priced, and the server's
        # own width, which needs no graphs.
        ((), 64, None, (1, 2, 3, 4, 6, 8, 12, 16)),
        ((), 11, None, (1, 2, 3, 4, 6, 8, 11)),
        ((), 9, (3, 5), (3, 5)),
    ],
)
def test_a_ladder_is_what_is_asked_for_or_priced(
    plain_table, captured, draft_tokens, asked, ladder
):
    table = with_ladder(plain_table, *captured)
    assert ladder_of(table, draft_tokens, asked) == ladder


@pytest.mark.parametrize(
    ("captured", "draft_tokens", "asked", "says"),
    [
        ((), 4, (2, 8), "has width 8, and the server drafts 4"),
        ((), 64, (2, 17), "EVICT_PROFILE_LADDER has width 17"),
        (LADDER, 16, (2, 3), "width 3, and .*prices widths 1, 2, 4, 8, 16"),
        ((16, 32), 9, None, "no width up to the server's 9 draft tokens"),
    ],
)
def test_widths_that_cannot_be_are_refused(
    plain_table, captured, draft_tokens, asked, says
):
    with pytest.raises(ConfigError, match=says):
        ladder_of(with_ladder(plain_table, *captured), draft_tokens, asked)


@pytest.mark.parametrize(
    ("width", "lacks", "says"),
    [
        (17, False, "the server drafts 16 tokens"),
        (4, True, "has none; measure it with evict-profile calibrate"),
    ],
)
def test_what_cannot_be_fixed_is_refused(full_table, width, lacks, says):
    table = full_table
    if lacks:
        table = replace(table, acceptance=replace(table.acceptance, conditional=None))
    with pytest.raises(ConfigError, match=says):
        fixed_ladder(table, width, 16)

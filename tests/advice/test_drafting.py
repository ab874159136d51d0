"""A drafter's kind decides flags; a user may give its time beside a sweep's table."""

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor
from evict_profile.advice.drafting import AS_SERVED, drafter_of, drafting_of_level
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.table import CostTable
from tests.advice.served import served_table
from tests.factories import DRAFTING

SERVED = served_table((1, 0, 8.0), (1, 3, 16.0))


@pytest.fixture
def table(saved_table):
    return CostTable.load(saved_table)


def test_a_model_drafts_with_its_own_layers_and_a_server_as_it_did(table):
    own = replace(table, model=replace(table.model, mtp_layers=1))
    assert drafter_of(None, table) == "eagle3"
    assert drafter_of(None, own) == "mtp"
    assert drafter_of(None, SERVED) == drafter_of(None, None) == AS_SERVED
    assert drafter_of("pard", own) == drafter_of("pard", SERVED) == "pard"


@pytest.mark.parametrize(("kind", "forwards"), [("eagle3", 5), ("dflash", 1)])
def test_a_given_time_is_of_each_forward(table, kind, forwards):
    """A block is drafted in one; what the table has of the rest of a step stays."""
    known = replace(table, drafting=DRAFTING)
    given = drafting_of_level(known, 2.0, kind)
    for batch in table.axes.batch:
        clock, measured = given.at(batch), DRAFTING.at(batch)
        drafted = 2e3 * forwards + measured.fixed_us
        assert clock.beside_us(5) == pytest.approx(drafted)
        assert clock.beside_us(0) == measured.plain_fixed_us


@pytest.mark.parametrize("level_ms", [-1.0, 1e6, float("nan")])
def test_a_time_that_cannot_be_is_refused(table, level_ms):
    with pytest.raises(ConfigError, match="is no time of one level"):
        drafting_of_level(table, level_ms, "eagle3")


def test_a_drafter_of_its_own_needs_a_time(table):
    with pytest.raises(ConfigError, match=r"has no time of it; .* --draft-level-ms"):
        Advisor.of(table, of_rate(0.8), drafter="pard")
    assert (
        Advisor.of(table, of_rate(0.8), level_ms=1.0, drafter="pard").drafter == "pard"
    )

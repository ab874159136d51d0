"""Draft lengths by batch and context: each place once, and changes only for a gain."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor, DraftPlan, Range, plan
from evict_profile.advice.answer import Answer
from evict_profile.advice.contexts import at_contexts, cells
from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.table import CostTable
from tests.shipped import tracked

CONTEXTS = (512, 2048, 8192, 32768)
LARGEST = 8


@pytest.fixture(scope="module")
def table():
    [path] = tracked("cost_tables/*/torch-moe/1.2.1.json")
    return CostTable.load(path)


def first_answer(table, rate):
    advisor = Advisor.of(table, of_rate(rate))
    return Answer(advisor, plan(advisor, dict.fromkeys(table.axes.batch, 0.5)))


@pytest.fixture(scope="module")
def cheap(table):
    """The same table, in which drafts cost nothing at its longest context."""
    longest = max(table.axes.context)

    def flat(stairs):
        if stairs.context != longest:
            return stairs
        us = (stairs.step_cost_us[1],) * len(stairs.step_cost_us)
        return replace(stairs, step_cost_us=us, low_us=us, high_us=us)

    return replace(table, staircases=tuple(map(flat, table.staircases)))


def test_a_context_at_which_drafts_cost_less_drafts_more(cheap):
    short, long = at_contexts(cheap, first_answer(cheap, 0.8), 0.0)
    assert not short.plan.advised
    assert long.plan.drafts > 3
    found = {
        (each.shortest, each.longest): each.drafts for each in cells([short, long])
    }
    middle = round(math.sqrt(512 * 4096))
    assert found == {(1, middle): 0, (middle + 1, 4096): long.plan.drafts}


def test_a_plan_is_kept_where_others_gain_less_than_five_per_cent(table):
    answers = at_contexts(table, first_answer(table, 0.97), None)
    assert [each.advisor.context for each in answers] == [512, 4096]
    assert answers[0].plan == answers[1].plan
    assert answers[0].gain != answers[1].gain
    assert cells(answers) == ()


def test_a_table_of_one_context_is_refused(table):
    one = replace(table, axes=replace(table.axes, context=(512,)))
    with pytest.raises(DataError, match="context 512 alone; leave out --by-context"):
        at_contexts(one, first_answer(table, 0.97), None)


@st.composite
def plans(draw):
    """A plan of one length, of none, or of a schedule by batch."""
    cuts = sorted(draw(st.sets(st.integers(2, LARGEST), max_size=3)))
    drafts = draw(st.lists(st.integers(0, 7), min_size=4, max_size=4))
    spans = zip([1, *cuts], [*(cut - 1 for cut in cuts), LARGEST], drafts, strict=False)
    ranges = tuple(Range(*span) for span in spans)
    return DraftPlan(
        {LARGEST: 1.0}, drafts[0], 1.0, ranges, draw(st.sampled_from((1, 2)))
    )


def answers_of(table, chosen):
    advisor = Advisor.of(table, of_rate(0.8))
    return [
        Answer(replace(advisor, context=context), each)
        for context, each in zip(CONTEXTS, chosen, strict=False)
    ]


@given(st.lists(plans(), min_size=1, max_size=len(CONTEXTS)))
def test_every_batch_and_context_drafts_as_its_plan(table, chosen):
    answers = answers_of(table, chosen)
    grid = cells(answers)
    assert bool(grid) == (len({str(each) for each in chosen}) > 1)
    for batch, answer in product(range(1, LARGEST + 1), answers) if grid else ():
        [drafts] = (
            each.drafts
            for each in grid
            if each.first <= batch <= each.last
            and each.shortest <= answer.advisor.context <= each.longest
        )
        assert drafts == answer.plan.drafts_at(batch)


@given(st.lists(plans(), min_size=2, max_size=len(CONTEXTS)))
def test_cells_are_a_grid_without_gaps(table, chosen):
    """vLLM's pull request refuses others."""
    answers = answers_of(table, chosen)
    if grid := cells(answers):
        for ends in ({each[:2] for each in grid}, {each[2:4] for each in grid}):
            firsts, lasts = zip(*sorted(ends), strict=True)
            assert firsts == (1, *(last + 1 for last in lasts[:-1]))
        assert grid[-1].last == LARGEST
        assert grid[-1].longest == answers[-1].advisor.context
        assert len(grid) == len({e[:2] for e in grid}) * len({e[2:4] for e in grid})

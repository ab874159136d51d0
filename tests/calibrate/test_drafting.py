"""Drafting by level, of a trace that knows the time of all levels alone."""

import pytest

from evict_profile.calibrate.drafting import BY_TABLE, EVENLY, by_level
from evict_profile.drafting import DraftClock, Drafting, TimedRound
from evict_profile.records import replace
from evict_profile.table import CostTable
from tests.command import evict
from tests.factories import DRAFTING
from tests.traces import synthetic
from tests.traces.synthetic import TINY, Plan

ROUNDS = (TimedRound(3, 5.0, 64, 900.0),)
SWEPT = Drafting(
    "the sweep",
    "sglang 0.5.20",
    (
        DraftClock(
            1, (0.0, 100.0, 400.0, 500.0), 40.0, 10.0, rounds=ROUNDS, token_us=2.0
        ),
        DraftClock(2, (0.0, 200.0, 600.0, 800.0), 60.0, 15.0),
    ),
)


def whole(us, batch=1, depth=3):
    return DraftClock(batch, (0.0, *[us] * depth), 77.0, 77.0)


def seen(*clocks):
    return Drafting("code", "sglang 0.5.20", clocks)


def test_a_whole_draft_takes_its_levels_from_the_table():
    """All else of the table's clocks stays, and so do batches that the trace lacks."""
    made = by_level(seen(whole(1000.0)), SWEPT)
    alone, pair = SWEPT.batches
    assert made.batches == (replace(alone, draft_us=(0.0, 200.0, 800.0, 1000.0)), pair)
    assert made.workload == "code" + BY_TABLE


@pytest.mark.parametrize(
    ("depth", "levels_us"),
    [
        (2, (0.0, 300.0, 900.0, 1200.0)),
        (3, (0.0, 225.0, 675.0, 900.0)),
        (4, (0.0, 180.0, 540.0, 720.0, 900.0)),
    ],
)
def test_another_batch_and_depth_take_the_nearest_of_the_table(depth, levels_us):
    """Rounds of another batch are not kept, since their unions are of that one."""
    made = by_level(seen(whole(900.0, 16, depth)), SWEPT).at(16)
    assert made == replace(SWEPT.batches[1], batch=16, draft_us=levels_us)
    of_rounds = replace(SWEPT, batches=SWEPT.batches[:1])
    assert by_level(seen(whole(900.0, 16)), of_rounds).at(16).rounds == ()


@pytest.mark.parametrize(
    "own",
    [
        None,
        replace(SWEPT, batches=(whole(50.0),)),
        replace(SWEPT, batches=(DraftClock(1, (0.0, 0.0), 1.0, 1.0),)),
    ],
)
def test_without_levels_in_the_table_the_whole_is_divided_evenly(own):
    made = by_level(seen(whole(900.0)), own)
    assert made.batches == (replace(whole(900.0), draft_us=(0.0, 300.0, 600.0, 900.0)),)
    assert made.workload == "code" + EVENLY


def test_a_trace_that_knows_its_levels_is_taken_as_it_is():
    one_level = seen(DraftClock(1, (0.0, 100.0), 1.0, 1.0))
    for found in (DRAFTING, one_level):
        assert by_level(found, SWEPT) is found


def test_the_command_says_where_levels_come_from(saved_table, tmp_path, monkeypatch):
    """The trace is of an engine that drafts all levels as one graph."""
    of_levels = synthetic.make_clock

    def one_graph(about, batch):
        clock = of_levels(about, batch)
        return replace(clock, draft_us=(0.0, *clock.draft_us[-1:] * about.depth))

    monkeypatch.setattr(synthetic, "make_clock", one_graph)
    plan = Plan(prompts=6, tokens=8, about=TINY)
    traces = synthetic.write_trace(tmp_path / "t.parquet", plan)
    done = evict("calibrate", saved_table, traces, folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "divided evenly over the levels" in done.stdout
    made = CostTable.load(tmp_path / "1.0.1.json").drafting
    rising = made.at(1).draft_us
    assert rising[1] < rising[-1]
    assert rising[-1] == of_levels(plan.about, 1).draft_us[-1]

"""Drafting pauses while it loses, looks again now and then, and one look can end it."""

from itertools import islice

import numpy as np
import pytest

from evict_profile.records import replace
from evict_profile.runtime import (
    Calibration,
    CostTable,
    DraftClock,
    Drafting,
    Truncator,
)
from evict_profile.runtime.decision import MAX_BACKOFF_STEPS, DraftBackoff

EAGLE = {"drafts": "topk", "acceptance": "target-only"}
PLAIN_US = 100.0
SURE, HOPELESS = np.ones((1, 1, 4)), np.full((1, 1, 4), 1e-6)


def steps(pause, tokens_each, us):
    """Whether each step skips, when drafting always promises so much for its time."""
    while True:
        skipped = pause.should_skip(PLAIN_US)
        if skipped:
            pause.observe(1.0, PLAIN_US, drafted=False)
        else:
            pause.observe(tokens_each, us, drafted=True)
        yield skipped


def test_what_loses_pauses_for_longer_and_longer():
    """After 1, 2, 4, .. and at last every 32 skipped steps it is looked at again."""
    skips = list(islice(steps(DraftBackoff(), 1.5, 2.0 * PLAIN_US), 200))
    lengths = [len(run) for run in "".join("-d"[not s] for s in skips).split("d")]
    assert lengths[:8] == [0, 1, 2, 4, 8, 16, 32, 32]
    assert max(lengths) == MAX_BACKOFF_STEPS


def test_one_good_look_after_a_long_pause_ends_it():
    pause = DraftBackoff()
    for _ in islice(steps(pause, 1.0, 2.0 * PLAIN_US), 200):
        pass
    while pause.should_skip(PLAIN_US):
        pause.observe(1.0, PLAIN_US, drafted=False)
    pause.observe(3.0, 2.0 * PLAIN_US, drafted=True)
    assert not pause.should_skip(PLAIN_US)
    assert pause.backoff_steps == 1


def test_one_bad_step_among_good_ones_does_not_pause():
    pause = DraftBackoff()
    for _ in range(50):
        pause.observe(3.0, 2.0 * PLAIN_US, drafted=True)
    pause.observe(1.0, 2.0 * PLAIN_US, drafted=True)
    assert not pause.should_skip(PLAIN_US)


@pytest.fixture
def table(workload_table):
    """Drafting takes as long as many plain steps, so that a sure tree alone pays."""
    table = CostTable.load(workload_table)
    slow_us = 0.5 * float(table.step_cost_us(1, 64)[1])
    slow = DraftClock(1, (0.0, slow_us, 4.0 * slow_us), 0.0, 0.0)
    return replace(table, drafting=Drafting("none", "a test", (slow,)), acceptance=None)


@pytest.fixture
def truncator(table, workload_table):
    known = CostTable.load(workload_table).acceptance
    honest = Calibration((0.0, 1.0), (0.0, 1.0), known.per_rank, known.conditional)
    return Truncator(table, calibration=honest, **EAGLE)


def drafts(truncator, level):
    """A step as an engine takes it: ask, then plan and observe what was drafted."""
    step = truncator.begin(1, context=64)
    drafted = step.deeper()
    if drafted:
        step.extend(level)
    plan = step.plan()
    assert drafted or (plan.tokens, plan.keep.shape) == (1, (1, 0))
    step.observe(max(1, round(plan.expected_tokens)))
    return drafted


def test_a_truncator_pauses_what_loses(truncator):
    """The first step drafts; then one step is skipped, then two, then four."""
    asked = [drafts(truncator, HOPELESS) for _ in range(10)]
    assert asked == [bool(int(c)) for c in "1010010000"]


def test_a_truncator_drafts_again_when_text_turns_easy(truncator):
    for _ in range(200):
        drafts(truncator, HOPELESS)
    asked = [drafts(truncator, SURE) for _ in range(80)]
    first = asked.index(True)
    assert first <= MAX_BACKOFF_STEPS
    assert all(asked[first:])

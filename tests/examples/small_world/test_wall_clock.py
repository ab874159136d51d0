"""Turns are shared out fairly, and everything that was decoded is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    PAIR_CONDITIONAL,
    RATE_DEPTH,
    Fixed,
    plain_decoding,
)
from evict_profile.replay.simulate import reply_order
from evict_profile.stats import Estimate
from evict_profile.traces import TraceInfo
from examples.small_world.engine import session as module
from examples.small_world.engine.accept import greedy
from examples.small_world.engine.session import Job, TraceSession
from examples.small_world.turns import Measured, PolicyDecoding, serve_all, turns_of
from examples.small_world.wall_clock import is_off, policies_of
from tests.examples.small_world.engine.decoding import (
    PROMPT_TOKENS,
    TREE,
    Text,
    make_checkpoint,
)
from tests.traces.synthetic import Plan, make_trace

TOKENS = 6


@pytest.fixture(scope="module")
def replies():
    return make_trace(Plan(prompts=3, tokens=TOKENS, workloads=("prose",)))


@pytest.fixture(scope="module")
def session():
    checkpoint = make_checkpoint()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            module, "open_checkpoint", lambda folder, device: checkpoint
        )
        monkeypatch.setattr(module, "HeldOut", Text)
        monkeypatch.setattr(module, "describe_checkpoint", lambda *_: TraceInfo("any"))
        return TraceSession("nowhere", TREE, PROMPT_TOKENS)


def measured(tokens, us, turn, replies=1):
    steps = [{"tokens": t, "us": u} for t, u in zip(tokens, us, strict=True)]
    return Measured(steps, turn, replies)


@given(st.dictionaries(st.text(), st.integers(1, 1000), min_size=1))
def test_turns_are_in_proportion(steps):
    """So all have about as many turns, the one of fewest steps two steps each."""
    turns = turns_of(steps)
    fewest = min(steps.values())
    assert min(turns.values()) == 2
    assert all(abs(turns[n] - 2 * steps[n] / fewest) <= 0.5 for n in steps)


def test_speed_is_tokens_over_time():
    found = measured([1, 3, 2], [10.0, 20.0, 30.0], 2)
    assert found.tokens_per_s()[0] == 1e6 * 6 / 60
    assert found.mean("us") == 20.0


def test_steps_of_a_turn_are_drawn_together():
    """One slow step in each turn makes no resample slower than another."""
    found = measured([1, 1] * 4, [1.0, 9.0] * 4, 2).tokens_per_s()
    assert np.ptp(found) == pytest.approx(0.0)


@given(st.floats(0.1, 10.0), st.integers(1, 30))
def test_what_never_varies_has_no_interval(ratio, count):
    below = np.arange(1.0, count + 1.0)
    steps = measured([1.0] * count, [1.0] * count, 1)
    assert steps.ratio(ratio * below, below, seed=0) == pytest.approx(ratio)


def test_what_is_slow_in_one_share_is_so_for_both():
    """A rule that is faster by a tenth in easy text and in hard: no interval at all."""
    plain = measured([1] * 40, [10.0] * 20 + [50.0] * 20, 2, replies=4)
    faster = measured([2] * 20, [18.0] * 10 + [90.0] * 10, 2, replies=4)
    assert faster.over(plain) == pytest.approx(1 / 0.9)
    assert plain.us_by_share().tolist() == [100.0, 100.0, 500.0, 500.0]


def test_an_interval_tells_of_shares_that_differ():
    """Faster in one half of the text, slower in the other."""
    plain = measured([1] * 40, [10.0] * 40, 2, replies=4)
    other = measured([1] * 40, [5.0] * 20 + [20.0] * 20, 2, replies=4)
    over = Estimate.of(other.over(plain))
    assert over.value == pytest.approx(0.8)
    assert over.low == pytest.approx(0.5) and over.high == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("low", "high", "off"),
    [(0.8, 1.2, False), (1.1, 1.3, False), (1.16, 1.3, True), (0.7, 0.86, True)],
)
def test_a_clock_far_from_the_replay_is_noticed(low, high, off):
    assert is_off(Estimate((low + high) / 2, low, high)) is off


def test_settings_stand_beside_the_rule_that_chooses_depth(informed_table):
    """The best settings by the replay, each named with what it was set to."""
    arrays = TraceArrays(make_trace(Plan(prompts=1, tokens=4, workloads=("code",))))
    replay = ScenarioReplay(arrays, informed_table, Scenario("code", 0.0, 1), 1)
    names = [AR, BEST_PAIR, PAIR_CONDITIONAL, RATE_DEPTH]
    found = policies_of(replay)
    assert [name.partition(" (")[0] for name in found] == names
    pair = found[list(found)[1]]()
    assert isinstance(pair, Fixed)
    assert f"({pair.setting})" in list(found)[1]


@pytest.mark.parametrize("batch", [1, 2])
def test_all_decode_every_reply(session, replies, batch):
    """Under any policy; a batch is always full, so a reply may be decoded twice."""
    policies = {"plain": plain_decoding, "tree": lambda: Fixed("tree", 2, 5)}
    steps = {"plain": 18, "tree": 9}
    for each in serve_all(session, replies, policies, steps, 3, batch).values():
        assert each.columns["tokens"].sum() == 3 * TOKENS
        assert len(each.columns["us"]) <= 18


LENGTHS = (5, 9, 7, 6)


def decoding(session, policy, batch):
    """Four replies of different lengths."""
    prompts = session.held_out.prompts("prose", len(LENGTHS), session.prompt_tokens)
    pairs = zip(prompts, LENGTHS, strict=True)
    jobs = [Job(prompt, greedy, tokens) for prompt, tokens in pairs]
    engine = session.engine(batch, max(LENGTHS))
    return PolicyDecoding(engine, policy, jobs, batch)


def test_slots_take_replies_in_order_and_are_never_empty(session):
    one, order = decoding(session, plain_decoding(), 2), reply_order(len(LENGTHS), 0)
    # A plain step counts one token a slot, so each reply lasts as many steps.
    slots = [next(order), next(order)]
    left = [LENGTHS[job] for job in slots]
    while not one.ended:
        assert one.slots == slots
        one.take_turn(1)
        assert one.steps[-1]["tokens"] == 2
        left = [n - 1 for n in left]
        for slot in range(2):
            if not left[slot]:
                slots[slot] = next(order)
                left[slot] = LENGTHS[slots[slot]]


def test_a_reply_counts_no_further_than_its_end(session):
    one, tokens = decoding(session, Fixed("tree", 3, 10), 1), np.zeros(len(LENGTHS))
    while not one.ended:
        (job,) = one.slots
        one.take_turn(1)
        tokens[job] += one.steps[-1]["tokens"]
    assert tokens.tolist() == list(LENGTHS)

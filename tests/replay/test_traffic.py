"""A traffic's replay, against all settings at all batches by brute force."""

import numpy as np
import pytest

from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    FULL_TREE,
    ONE_SETTING,
    ORACLE,
    RATE,
    RATE_DEPTH,
    SCHEDULE,
    Fixed,
    full_tree,
    plain_decoding,
)
from evict_profile.replay.traffic import TrafficReplay
from evict_profile.stats import WORTHWHILE
from tests.replay.conftest import policies

TRAFFIC = {1: 0.5, 3: 0.5}
BATCHES = tuple(TRAFFIC)


def at(arrays, table, batches, seeds=1):
    scenarios = [Scenario(MIXED, 0.0, batch) for batch in batches]
    return [ScenarioReplay(arrays, table, each, seeds) for each in scenarios]


@pytest.fixture(scope="module")
def replays(arrays, table):
    return at(arrays, table, BATCHES)


@pytest.fixture(scope="module")
def comparison(replays):
    return TrafficReplay(replays, TRAFFIC).compare()


def speed_up(replays, settings):
    """Over plain decoding, of a setting by batch: the harmonic mean by shares."""
    time = 0.0
    for replay, setting in zip(replays, settings, strict=True):
        plain, own = (
            replay.run(each, seed=0).tokens_per_s
            for each in (plain_decoding(), setting)
        )
        time += TRAFFIC[replay.scenario.batch] * plain / own
    return 1.0 / time


def test_a_gain_is_the_harmonic_mean_of_gains_by_batch(replays, table, comparison):
    whole = comparison.of(FULL_TREE).over[AR].value
    assert whole == pytest.approx(speed_up(replays, [full_tree(24, 4)] * 2))
    for name in (RATE, RATE_DEPTH):
        own = [policies(table)[name]() for _ in BATCHES]
        gain = comparison.of(name).over[AR].value
        assert gain == pytest.approx(speed_up(replays, own))


def test_tokens_per_s_are_those_of_the_work_over_its_time(replays, comparison):
    rates = [each.run(plain_decoding(), seed=0).tokens_per_s for each in replays]
    shares = list(TRAFFIC.values())
    plain = comparison.of(AR).tokens_per_s.value
    assert plain == pytest.approx(np.average(rates, weights=shares))


def test_no_one_setting_beats_the_best(replays, comparison):
    """Of all depths and widths; the width is refined around the best of a grid."""
    best = max(
        speed_up(replays, [Fixed("", depth, width)] * 2)
        for depth in (1, 2, 3, 4)
        for width in range(2, 26)
    )
    point = comparison.best
    found = speed_up(replays, [Fixed("", point.depth, point.width)] * 2)
    assert best >= found >= 0.99 * best
    assert comparison.of(BEST_PAIR).over[AR].value < found


def test_a_schedule_has_the_fastest_setting_of_each_batch(replays, comparison):
    """Against every depth, width and ranking, less its optimism."""
    conditional = replays[0].table.acceptance.conditional
    best = []
    for replay in replays:
        rates = {
            setting: replay.run(setting, seed=0).tokens_per_s
            / (WORTHWHILE if setting.conditional else 1.0)
            for ranks in (None, conditional)
            for depth in (1, 2, 3, 4)
            for width in range(2, 26)
            for setting in [Fixed("", depth, width, ranks)]
        }
        best.append(max(rates, key=rates.get))
    replay = TrafficReplay(replays, TRAFFIC)
    *_, (found, bias) = replay.tuned(replay.tune())
    chosen = [found.settings[batch] for batch in BATCHES]
    assert speed_up(replays, chosen) >= 0.98 * speed_up(replays, best)
    gain = comparison.of(SCHEDULE).over[AR].value
    assert gain == pytest.approx(speed_up(replays, chosen) / np.exp(bias[0]))
    assert bias[0] > 0.0


def test_a_traffic_of_one_batch_is_that_batch(arrays, table):
    alone = at(arrays, table, [3], seeds=2)[0].compare()
    traffic = TrafficReplay(at(arrays, table, [3], seeds=2), {3: 1.0}).compare()
    for name in (AR, FULL_TREE, *ONE_SETTING, RATE, ORACLE):
        own, same = traffic.of(name), alone.of(name)
        assert own.setting == same.setting
        for field in ("tokens_per_s", "committed", "step_us"):
            own_value, same_value = getattr(own, field), getattr(same, field)
            assert own_value.value == pytest.approx(same_value.value)
        assert own.over[AR].low == pytest.approx(same.over[AR].low)
    assert SCHEDULE not in {each.policy for each in traffic.results}
    assert f"{SCHEDULE} (" not in str(traffic), "one setting is no schedule"


def test_the_sentence_compares_all_with_one_setting(comparison):
    said = str(comparison)
    one = max(map(comparison.of, ONE_SETTING), key=lambda r: r.tokens_per_s.value)
    assert f"mixed, temperature 0, batch 1 (50%), 3 (50%): {comparison.advice}" in said
    assert f"One setting for all batches, {one}, decodes" in said
    schedule, whole = map(comparison.of, (SCHEDULE, FULL_TREE))
    for other in (schedule, comparison.adaptive, whole):
        gain = 100.0 * (other.over[one.policy].value - 1.0)
        assert f"{other} gives {gain:+.1f} %" in said
    assert "stops paying" not in said

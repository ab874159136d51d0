"""A table that no longer describes the machine is noticed; one that does is not."""

import numpy as np
import pytest

from evict_profile.errors import ConfigError
from evict_profile.runtime import CostTable, StepWatch


@pytest.fixture
def watch(saved_table):
    """A watch on a table whose costs are known to under one per cent."""
    return StepWatch(CostTable.load(saved_table))


def feed(watch, factor, steps, seed=0):
    """Steps that took `factor` times their cost, with noise and a long tail."""
    noise = np.random.default_rng(seed).lognormal(0.0, 0.03, steps)
    noise[::10] *= 3.0
    for share in noise:
        watch.observe(1000.0 * factor * share, 1000.0)


def test_a_sound_table_holds(watch):
    feed(watch, 1.0, 200)
    report = watch.report()
    assert report.verdict == "holds"
    assert report.low < 1.0 < report.high


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_moved_machine_is_noticed_either_way(watch, factor):
    feed(watch, factor, 200)
    report = watch.report()
    assert report.verdict == "drifted"
    assert report.ratio == pytest.approx(factor, rel=0.03)


def test_old_steps_are_forgotten(watch):
    feed(watch, 1.5, 200)
    feed(watch, 1.0, 200)
    assert watch.report().verdict == "holds"


@pytest.mark.parametrize("times", [(5.0, 0.0), (float("nan"), 1.0), (-1.0, 1.0)])
def test_times_that_are_none_are_refused(watch, times):
    with pytest.raises(ConfigError, match="_us"):
        watch.observe(*times)


def test_few_steps_say_nothing(watch):
    assert watch.report().verdict == "unknown"
    feed(watch, 2.0, 15)
    assert watch.report().verdict == "unknown"
    assert "unknown" in str(watch.report())

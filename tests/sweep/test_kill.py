"""Kill -9 at any moment costs a sweep the round it was in, and nothing else."""

import random

import pytest

from benchmarks.kill_resume import SCRIPTED, Series, Subject, kill_series, untouched

pytestmark = pytest.mark.slow

KILLS = 10


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """A sweep killed ten times at seeded moments and then left to finish."""
    folder, subject = tmp_path_factory.mktemp("kill"), Subject(SCRIPTED)
    whole = untouched(subject, folder / "untouched")
    return kill_series(subject, whole, folder / "killed", KILLS, random.Random(2))


def test_kills_fell_into_several_rounds(series: Series) -> None:
    """The test would prove little if all kills met the same round."""
    assert len(series.kills) >= KILLS // 2
    assert len({kill.at_round for kill in series.kills}) >= 3


def test_a_kill_loses_one_round_at_most(series: Series) -> None:
    """Samples measured and not stored are all of the round in flight."""
    assert max(kill.rounds_lost for kill in series.kills) <= 1


def test_a_kill_leaves_stored_rounds_untouched(series: Series) -> None:
    """Every part written before is still there, byte by byte, and readable."""
    assert sum(kill.parts_changed for kill in series.kills) == 0


def test_a_killed_sweep_ends_as_the_untouched_one(series: Series) -> None:
    """Sample by sample, to the last digit, in the same order."""
    assert series.equal

"""Kill -9 at any moment costs a sweep the round it was in, and nothing else.

The command runs in a process of its own, is killed while it measures, and is started
again, until it has been killed as often as asked; then it may finish. Latency is a
formula of cell and seed, so it must end with the samples of a sweep that nobody
touched, to the last digit.
"""

import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass

import pandas as pd
import pytest
import yaml

from evict_profile.records import to_mapping
from evict_profile.sweep.store import Store
from tests.sweep.conftest import comparable

pytestmark = pytest.mark.slow

KILLS = 5
POLL_S, MAX_WAIT_S = 0.005, 0.06
"""The wait lets a kill fall between samples too: into the writing of a part."""


@dataclass(frozen=True)
class Kill:
    """What one kill cost.

    Attributes:
        at_round: the last round that was stored.
        rounds_lost: those with samples that were measured, and are not on the disk.
        parts_changed: files of earlier rounds that are gone or differ.
    """

    at_round: int
    rounds_lost: set[int]
    parts_changed: int


class KilledSweep:
    """The command `sweep`, into one folder, life after life."""

    def __init__(self, folder, spec):
        self.store, self.journal = Store(folder / "run"), folder / "journal"
        self.plan = folder / "sweep.yaml"
        self.plan.write_text(yaml.safe_dump(to_mapping(spec)))

    def start(self):
        """Start or continue; the runner notes the seed of each sample it measures."""
        self.journal.unlink(missing_ok=True)
        options = ["tiny", "--plan", self.plan]
        options += ["--out", self.store.folder]
        options += ["--tables", self.store.folder.parent / "tables"]
        slowed = {"SCRIPTED_SLEEP": "0.005", "RUNNER_JOURNAL": str(self.journal)}
        return subprocess.Popen(
            [sys.executable, "-m", "evict_profile", "sweep", *options],
            env={**os.environ, **slowed},
            stdout=subprocess.DEVNULL,
        )

    def seeds(self):
        return {int(n) for n in self.journal.read_text().split() if n.isdigit()}

    def kill(self, samples, wait_s):
        """Start, and kill after so many samples; False when it ended before."""
        life = self.start()
        while life.poll() is None:
            if self.journal.exists() and len(self.seeds()) > samples:
                time.sleep(wait_s)
                life.kill()
                return life.wait() < 0
            time.sleep(POLL_S)
        assert life.returncode == 0
        return False

    def parts(self):
        return {p.name: p.read_bytes() for p in self.store.parts.glob("*.parquet")}


@pytest.fixture(scope="module")
def killed(tmp_path_factory, spec, whole):
    """A sweep killed at seeded moments and then left to finish."""
    sweep, rng = KilledSweep(tmp_path_factory.mktemp("killed"), spec), random.Random(2)
    measured = whole[whole["round"] > 0]
    round_of = dict(zip(measured["seed"], measured["round"], strict=True))
    kills: list[Kill] = []
    parts: dict[str, bytes] = {}
    most = 2.0 * len(measured) / KILLS
    while len(kills) < KILLS and sweep.kill(
        rng.uniform(0.0, most), rng.uniform(0.0, MAX_WAIT_S)
    ):
        left, stored = sweep.parts(), sweep.store.frame()
        # Samples of the union test and the scaling test belong to no round.
        lost = (sweep.seeds() & round_of.keys()) - set(stored["seed"])
        changed = sum(left.get(name) != content for name, content in parts.items())
        last = int(stored["round"].max()) if len(stored) else 0
        kills.append(Kill(last, {round_of[seed] for seed in lost}, changed))
        parts = left
    assert sweep.start().wait() == 0
    assert parts.items() <= sweep.parts().items()
    return kills, sweep.store


def test_a_kill_loses_the_round_in_flight_alone(killed):
    """In whatever round it falls; stored parts stay, byte by byte."""
    kills, _ = killed
    assert len(kills) >= KILLS // 2
    assert len({kill.at_round for kill in kills}) >= 3
    assert max(len(kill.rounds_lost) for kill in kills) == 1
    assert not any(kill.parts_changed for kill in kills)


def test_a_killed_sweep_ends_as_the_untouched_one(killed, whole):
    """Sample by sample, to the last digit, in the same order."""
    _, store = killed
    pd.testing.assert_frame_equal(comparable(store.frame()), comparable(whole))

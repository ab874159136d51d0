"""What a search loses that lets no batch draft more than a smaller one.

Speeds by batch and length are measured: those that a server published, and replays of
the small world. A search sees each speed with a relative error, and chooses the fastest
length, with and without the rule. On an MoE a tie at one batch may be decided for the
shorter length, which a larger batch would then be denied.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.claims.rivals import chains
from benchmarks.claims.worlds import World
from benchmarks.served.record import DATA
from evict_profile.replay.compare import MIXED
from evict_profile.stats import Bools, Floats

ERRORS = (0.0, 0.02, 0.05)
DRAWS = 20_000
PUBLISHED = DATA / "sglang-autospec-22246.csv"
NAMED = "Qwen3-235B-A22B + EAGLE3"
BATCHES = (1, 4, 16)


@dataclass(frozen=True)
class Lost:
    """Per cent of the best speed, mean over draws, of the batch that loses most."""

    speeds: str
    error: str
    worst_batch: str
    monotone: str
    free: str


def lost_to_the_rule(world: World) -> Iterator[Lost]:
    for name, (batches, speeds) in measured(world).items():
        for error in ERRORS:
            by_rule, free = (
                loss(speeds, error, is_monotone).mean(axis=0)
                for is_monotone in (True, False)
            )
            at = int(np.argmax(by_rule - free))
            shown = (f"{100.0 * each[at]:.1f}" for each in (by_rule, free))
            yield Lost(name, f"{error:.0%}", batches[at], *shown)


def measured(world: World) -> dict[str, tuple[list[str], Floats]]:
    """Batches, and tokens/s [batches, lengths]."""
    rows = pd.read_csv(PUBLISHED, comment="#", skiprows=1)
    own = rows[(rows["target"] == NAMED) & rows["steps"].str.isdigit()]
    names = [name for name in own if str(name).startswith("b")]
    published = own[names].to_numpy(np.float64).T
    replayed = []
    for batch in BATCHES:
        replay = world.replay(MIXED, batch)
        arms = chains(replay.arrays.depth)
        replayed.append([replay.run(arm, 0).tokens_per_s for arm in arms])
    return {
        f"{NAMED}, served": ([str(name)[1:] for name in names], published),
        "small world, replayed": (list(map(str, BATCHES)), np.array(replayed)),
    }


def loss(speeds: Floats, error: float, is_monotone: bool) -> Floats:
    """Share of the best speed that is lost, float64 [draws, batches]."""
    rng = np.random.default_rng(0)
    seen = speeds * np.exp(error * rng.standard_normal((DRAWS, *speeds.shape)))
    most = np.full(DRAWS, speeds.shape[1])
    lost = np.empty((DRAWS, len(speeds)))
    for row, own in enumerate(speeds):
        open_to: Bools = np.arange(len(own)) <= most[:, None]
        choice = np.where(open_to, seen[:, row], 0.0).argmax(axis=1)
        lost[:, row] = 1.0 - own[choice] / own.max()
        most = choice if is_monotone else most
    return lost

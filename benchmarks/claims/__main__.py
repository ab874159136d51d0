"""Judge a paper's claims on recordings of the small world.

    python -m benchmarks.claims evict [--recordings runs/results] [--out docs/results]

It reads draft trees (`moe`) and chains (`chains`), and writes a CSV a table into
`data/` and `mismatch.svg`. `--study NAME` does one alone. `make results` records first,
and `make results-dense` for `widths` and `dense`, which are done only where named.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import groupby
from pathlib import Path

import pandas as pd

from benchmarks.claims import curves, dense, evict, mismatch, monotone, prior, regret
from benchmarks.claims.evict import percent
from benchmarks.claims.worlds import World
from benchmarks.common import command, restart_on_one_thread
from evict_profile.io import make_folder, write_text
from evict_profile.stats import Estimate
from evict_profile.traces import Trace

Cells = Iterable[Mapping[str, object]]


class Recordings:
    """What is recorded, read when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def trees(self) -> World:
        return World.load(self.folder / "moe")

    @cached_property
    def warm(self) -> World:
        return World.load(self.folder / "moe", temperature=1.0)

    @cached_property
    def chains(self) -> World:
        return World.load(self.folder / "chains")

    @cached_property
    def controls(self) -> dict[str, tuple[Trace, list[dense.Verification]]]:
        """A world's recording, and its times of verification, which are measured."""
        found = {}
        for world, name in dense.WORLDS.items():
            trace = World.load(self.folder / name).whole
            weights = dense.weights_of(world, self.folder)
            found[world] = trace, list(dense.time_widths(world, weights, trace))
        return found


def claims(found: Recordings, out: Path) -> Cells:
    return map(asdict, evict.claims(found.trees, found.warm))


def cost_curves(found: Recordings, out: Path) -> Cells:
    return map(asdict, curves.curves(found.trees, found.warm))


def rivals(world: World) -> Cells:
    """A row a policy and text, columns by batch."""

    def place(each: regret.Regret) -> tuple[str, str]:
        return each.text, each.policy

    for (text, name), own in groupby(sorted(regret.of_rivals(world), key=place), place):
        batches = list(own)
        yield (
            {"text": text, "policy": name}
            | {f"lost, batch {each.batch}": lost(each.lost) for each in batches}
            | {
                f"ours over it, batch {each.batch}": percent(each.ours)
                for each in batches
            }
        )


def chain_rivals(found: Recordings, out: Path) -> Cells:
    return rivals(found.chains)


def tree_rivals(found: Recordings, out: Path) -> Cells:
    return rivals(found.trees)


def mismatches(found: Recordings, out: Path) -> Cells:
    rows = list(mismatch.losses(found.trees))
    mismatch.draw(rows, out / "mismatch.svg")
    for each in rows:
        yield asdict(each) | {"lost": lost(each.lost)}


def lost(share: Estimate) -> str:
    """Per cent: "2.4 (0.8..3.9)"."""
    value, low, high = (
        f"{100.0 * x:.1f}" for x in (share.value, share.low, share.high)
    )
    return f"{value} ({low}..{high})"


def search(found: Recordings, out: Path) -> Cells:
    return map(asdict, prior.settling(found.chains))


def never_wider(found: Recordings, out: Path) -> Cells:
    return map(asdict, monotone.lost_to_the_rule(found.chains))


def widths(found: Recordings, out: Path) -> Cells:
    for _, times in found.controls.values():
        for each in times:
            yield asdict(each)


def dense_control(found: Recordings, out: Path) -> Cells:
    for world, (trace, times) in found.controls.items():
        yield from map(asdict, dense.claims(world, trace, times))


STUDIES: dict[str, Callable[[Recordings, Path], Cells]] = {
    "claims": claims,
    "curves": cost_curves,
    "mismatch": mismatches,
    "chains": chain_rivals,
    "trees": tree_rivals,
    "prior": search,
    "monotone": never_wider,
    "widths": widths,
    "dense": dense_control,
}
NAMED = ("widths", "dense")


@command
def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paper", choices=["evict"])
    parser.add_argument("--recordings", type=Path, default=Path("runs/results"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--study", choices=STUDIES, action="append", help="repeatable")
    asked = parser.parse_args(arguments)
    make_folder(asked.out / "data")
    found = Recordings(asked.recordings)
    for name in asked.study or [each for each in STUDIES if each not in NAMED]:
        rows = pd.DataFrame(list(STUDIES[name](found, asked.out)))
        rows.columns = [str(each).replace("_", " ") for each in rows]
        path = asked.out / "data" / f"{asked.paper}-{name}.csv"
        write_text(rows.to_csv(index=False, lineterminator="\n"), path)
        print(path, rows.to_string(index=False), sep="\n", flush=True)


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))

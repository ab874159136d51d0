"""SGLang on a GPU: the table, speed from end to end, and what the plug-in costs.

    runners/gpu_sglang.sh OUT [PYTHON]

Each step runs in a process of its own under its own limit; one whose result is in OUT
is skipped, so the same command goes on where it stopped, and three calls of under ten
minutes do it all: the first makes the table, the others serve with it.

    kernels    SGLang's tree kernels on cut trees against plain Python; versions
    profile    the sweep `sglang` of Qwen3-30B-A3B, and its table
    serving    plain, whole trees, chosen and fixed widths; memory of each pair
    start-up   error of a profile that a server would take of itself with dummy tokens
    decision   what the choice of a width and its copy cost a step

A step that fails costs itself and those that need what it makes. OUT then holds
results.tar.gz, which is all that is worth carrying away; the exit code is 1 while a
result is missing. PYTHON has SGLang; evict-profile runs in TOOLKIT_PYTHON, by default
the same. DRY=1 goes through all steps with a tiny model, on a CPU too.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evict_profile.config import load_sweep
from runners.gpu_tables import ROOT, evict
from runners.gpu_world import Missing, Task, script, work

TABLE = "tables/*/*/*/1.0.0.json"


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    Attributes:
        minutes: of the sweep; the model's loading comes on top.
        widths: fixed ones to serve with.
        tokens, repeats: of each reply, and of each batch.
    """

    model: str
    sweep: str
    minutes: float
    widths: tuple[int, ...]
    tokens: int
    repeats: int


GPU = Scale("qwen3-30b-a3b", "sglang", 5.0, (8, 24), tokens=256, repeats=5)
DRY = Scale("tiny-qwen3", "sglang-tiny", 1.0, (4,), tokens=24, repeats=2)


@dataclass(frozen=True)
class Whole:
    """Commands of all steps, over one output folder."""

    out: Path
    python: str
    scale: Scale

    def tasks(self) -> list[Task]:
        """The steps in order; serving needs a call to itself."""
        return [
            Task("kernels", 90.0, "kernels.json", self.kernels),
            Task("profile", 470.0, TABLE, self.profile, goes_on=True),
            Task("serving", 560.0, "serving/serving.json", self.serving),
            Task("start-up", 40.0, "start_up.json", self.start_up),
            Task("decision", 90.0, "decision.json", self.decision),
        ]

    def kernels(self) -> tuple[str, ...]:
        """Tree kernels, and versions."""
        return self._in_sglang("sglang_kernels.py", "--out", self._at("kernels.json"))

    def profile(self) -> tuple[str, ...]:
        """Sweep, fit and table, of whole forwards in SGLang's model runner."""
        words = [*self._measured, "--python", self.python]
        words += ["--out", self._at("run"), "--tables", self._at("tables")]
        return evict("profile", *words, "--max-minutes", str(self.scale.minutes))

    def serving(self) -> tuple[str, ...]:
        """All modes; begins none that this call would not see end."""
        words = [*self._measured, "--table", self._table, "--python", self.python]
        words += [f"--width={width}" for width in self.scale.widths]
        words += ["--tokens", str(self.scale.tokens)]
        words += ["--repeats", str(self.scale.repeats), "--minutes", "7"]
        out = ("--out", self._at("serving"))
        return script("benchmarks", "sglang_serving.py", *words, *out)

    def start_up(self) -> tuple[str, ...]:
        """From the sweep's samples."""
        _ = self._table
        words = (self._at("run"), "--out", self._at("start_up.json"))
        return script("benchmarks", "sglang_start_up.py", *words)

    def decision(self) -> tuple[str, ...]:
        """With the sweep's trees and batches."""
        sweep = load_sweep(self.scale.sweep)
        words = ["--table", self._table, "--out", self._at("decision.json")]
        words += ["--steps", str(sweep.sglang.steps), "--topk", str(sweep.sglang.topk)]
        words += ["--draft-tokens", str(max(sweep.grid.width))]
        words += ["--context", str(min(sweep.grid.context))]
        words += [f"--batch={batch}" for batch in sweep.grid.batch]
        return self._in_sglang("sglang_decision.py", *words)

    def _in_sglang(self, name: str, *words: str) -> tuple[str, ...]:
        return self.python, str(ROOT / "benchmarks" / name), *words

    @property
    def _measured(self) -> tuple[str, ...]:
        return "--model", self.scale.model, "--sweep", self.scale.sweep

    @property
    def _table(self) -> str:
        found = sorted(self.out.glob(TABLE))
        if not found:
            raise Missing(TABLE)
        return str(found[-1])

    def _at(self, name: str) -> str:
        return str(self.out / name)


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows; 1 while a result is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="that has SGLang")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--only", action="append", help="a step; repeatable")
    asked = parser.parse_args(arguments)
    scale = DRY if asked.dry_run else GPU
    out = asked.out.resolve()
    plan = Whole(out, asked.python, scale).tasks()
    names = [task.name for task in plan]
    if unknown := set(asked.only or ()) - set(names):
        parser.error(f"--only {min(unknown)}: the steps are {', '.join(names)}")
    return work(out, [t for t in plan if not asked.only or t.name in asked.only])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

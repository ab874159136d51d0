"""SGLang on a GPU: the table, speed from end to end, and what the plug-in costs.

    runners/gpu_sglang.sh OUT [PYTHON]

A call ends within LIMIT_S seconds, skips what is in OUT and goes on where the last one
stopped; runners/gpu_calls.py tells what lies in OUT, and the exit codes. Three calls
of under ten minutes do it all: the first makes the table, the others serve with it.

    kernels      SGLang's tree kernels on cut trees against plain Python; versions
    sweep        the sweep `sglang` of Qwen3-30B-A3B
    sweep-table  its table, if the gates let it pass
    start-up     error of a profile that a server would take of itself with dummy tokens
    serving      plain, whole trees, chosen and fixed widths; memory of each pair
    decision     what the choice of a width and its copy cost a step

A step that fails costs itself and those that need what it makes. PYTHON has SGLang;
evict-profile runs in TOOLKIT_PYTHON, by default the same. DRY=1 goes through all steps
with a tiny model, on a CPU too.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evict_profile.config import load_sweep
from runners.gpu_calls import go, parser_of
from runners.gpu_steps import ROOT, Command, Step, made, script
from runners.gpu_sweeps import Sweep

SWEEP_S = 410.0
"""Loading, the minutes of the sweep, and the clocks of drafting: an estimate."""


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


GPU = Scale("qwen3-30b-a3b", "sglang", 4.0, (8, 24), tokens=256, repeats=5)
DRY = Scale("tiny-qwen3", "sglang-tiny", 1.0, (4,), tokens=24, repeats=2)


@dataclass(frozen=True)
class Whole:
    """Commands of all steps, over one output folder."""

    out: Path
    python: str
    scale: Scale

    def steps(self) -> list[Step]:
        """The steps in order; serving needs a call nearly to itself."""
        return [
            Step("kernels", 90.0, self.kernels, "kernels.json"),
            *self.swept.steps,
            Step("start-up", 40.0, self.start_up, "start_up.json"),
            Step("serving", 500.0, self.serving, "serving/serving.json"),
            Step("decision", 90.0, self.decision, "decision.json"),
        ]

    def kernels(self) -> Command:
        """Tree kernels, and versions."""
        return self._in_sglang("sglang_kernels.py", "--out", self._at("kernels.json"))

    @property
    def swept(self) -> Sweep:
        """Whole forwards in SGLang's model runner."""
        scale, python = self.scale, ("--python", self.python)
        spec = load_sweep(scale.sweep)
        model = scale.model
        return Sweep(
            self.out, "sweep", spec, scale.minutes, SWEEP_S, lambda: model, python
        )

    def serving(self) -> Command:
        """All modes; begins none that this call would not see end."""
        words = [*self._measured, "--table", self._table, "--python", self.python]
        words += [f"--width={width}" for width in self.scale.widths]
        words += ["--tokens", str(self.scale.tokens)]
        words += ["--repeats", str(self.scale.repeats), "--minutes", "6"]
        out = ("--out", self._at("serving"))
        return script("benchmarks", "sglang_serving.py", *words, *out)

    def start_up(self) -> Command:
        """From the sweep's samples."""
        words = (self.swept.measured(), "--out", self._at("start_up.json"))
        return script("benchmarks", "sglang_start_up.py", *words)

    def decision(self) -> Command:
        """With the sweep's trees and batches."""
        sweep = load_sweep(self.scale.sweep)
        words = ["--table", self._table, "--out", self._at("decision.json")]
        words += ["--steps", str(sweep.sglang.steps), "--topk", str(sweep.sglang.topk)]
        words += ["--draft-tokens", str(max(sweep.grid.width))]
        words += ["--context", str(min(sweep.grid.context))]
        words += [f"--batch={batch}" for batch in sweep.grid.batch]
        return self._in_sglang("sglang_decision.py", *words)

    def _in_sglang(self, name: str, *words: str) -> Command:
        return self.python, str(ROOT / "benchmarks" / name), *words

    @property
    def _measured(self) -> Command:
        return "--model", self.scale.model, "--sweep", self.scale.sweep

    @property
    def _table(self) -> str:
        return str(made(self.out, self.swept.table))

    def _at(self, name: str) -> str:
        return str(self.out / name)


def main(arguments: Sequence[str]) -> int:
    """Run the steps that the time allows."""
    parser = parser_of(__doc__)
    parser.add_argument("--python", default=sys.executable, help="that has SGLang")
    parser.add_argument("--dry-run", action="store_true")
    asked = parser.parse_args(arguments)
    if (python := shutil.which(asked.python)) is None:
        parser.error(
            f"--python {asked.python}: is no program; name one that has SGLang"
        )
    scale = DRY if asked.dry_run else GPU
    kind = {"script": "gpu_sglang", "scale": "dry" if asked.dry_run else "gpu"}
    # Not `resolve`: behind its link, the Python of an environment knows no packages.
    plan = Whole(asked.out.resolve(), str(Path(python).absolute()), scale).steps()
    return go(parser, asked, kind, plan)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

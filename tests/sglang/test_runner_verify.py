"""The runner inside SGLang: what it answers about cells and steps, on a CPU.

It speaks over its pipes, as the toolkit asks it to: the toolkit itself is not installed
in this environment.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "sglang" / "models"
STEPS, TOPK, WIDTHS, BATCHES = 2, 2, [1, 3, 6], [1, 2]
Answer = dict[str, Any]


class Runner:
    """The runner's process."""

    def __init__(self, log: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runners.sglang_verify"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self.log = log

    def ask(self, **request: Any) -> Answer:
        """Send a request; its answer, or the log's end where there is none."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.log.read_text(encoding="utf-8")[-3000:]
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=20)


def shape() -> Answer:
    """The toolkit's description of the target that lies beside the stubs."""
    config = json.loads((MODELS / "target" / "config.json").read_text())
    return {
        "name": "target",
        "source": "",
        "hidden_size": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "dense_layers": 0,
        "dense_width": 0,
        "dtype": "bfloat16",
        "moe": {
            "num_experts": config["num_experts"],
            "top_k": config["num_experts_per_tok"],
            "expert_width": config["moe_intermediate_size"],
        },
    }


def options(**changes: Any) -> Answer:
    """What the toolkit asks for."""
    folders = {"model": str(MODELS / "target"), "draft": str(MODELS / "draft")}
    own = {**folders, "steps": STEPS, "topk": TOPK, "attention_backend": ""}
    asked = {
        "device": "cpu",
        "layers": "auto",
        "graphs": True,
        "seed": 0,
        "ladder": WIDTHS,
        "max_width": max(WIDTHS),
        "max_context": 24,
        "max_batch": max(BATCHES),
        "batches": BATCHES,
        "sglang": own,
    }
    return {**asked, **changes}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runner, Any]]:
    """The runner with the target open, and its answer to opening."""
    runner = Runner(tmp_path_factory.mktemp("runner") / "log")
    opened = runner.ask(do="open", model=shape(), options=options())
    assert opened["ok"], opened
    yield runner, opened
    runner.close()


@pytest.fixture
def runner(started: tuple[Runner, Answer]) -> Runner:
    """The open runner."""
    return started[0]


def measured(runner: Runner, width: int, union: int, **changes: Any) -> Answer:
    """One sample of a cell."""
    cell = {
        "part": "layers",
        "width": width,
        "union": union,
        "context": 16,
        "batch": 1,
        "split": "balanced",
        **changes,
    }
    answer = runner.ask(do="measure", cell=cell, seeds=[3], layers=None)
    assert answer["ok"], answer
    sample: Answer = answer["samples"][0]
    return sample


def test_it_tells_what_it_runs(started: tuple[Runner, Answer]) -> None:
    _, opened = started
    facts = opened["fingerprint"]
    assert facts["engine"] == "sglang"
    assert facts["engine_version"] == metadata.version("sglang")
    assert facts["attention_backend"] == "IntelAMXAttnBackend"
    assert facts["graph_mode"] == "eager"
    assert facts["kernels"] == "stand-in"
    assert facts["layers"] == shape()["num_layers"]
    assert (facts["weights"], facts["tp"], facts["ep"]) == ("dummy", 1, 1)
    assert opened["ladder"] == []
    assert opened["whole"] and opened["clocks"]


@pytest.mark.parametrize("split", ["balanced", "skewed"])
@pytest.mark.parametrize(
    ("width", "batch", "union"), [(6, 2, 16), (3, 1, 7), (1, 1, 4)]
)
def test_every_layer_runs_the_forced_union(
    runner: Runner, width: int, batch: int, union: int, split: str
) -> None:
    sample = measured(runner, width, union, batch=batch, split=split)
    assert (sample["union_low"], sample["union_high"]) == (union, union)
    assert sample["observed_width"] == width
    assert (sample["tier"], sample["backend"]) == (0, "eager")
    assert sample["clock_us"] > 0.0 and sample["reference_us"] > 0.0


def test_natural_routing_is_the_models_own(runner: Runner) -> None:
    sample = measured(runner, 6, 0, batch=2, split="natural")
    assert sample["union_low"] < sample["union_high"]


def test_one_seed_measures_the_same_work(runner: Runner) -> None:
    first, again = (measured(runner, 6, 0, split="natural") for _ in range(2))
    assert first["observed_union"] == again["observed_union"]


def test_a_step_has_a_clock(runner: Runner) -> None:
    answer = runner.ask(do="clock", batch=2, steps=3)
    if metadata.version("sglang") == "0.5.16":
        assert answer["kind"] == "device"
        return
    assert answer["ok"], answer
    draft_us = answer["draft_us"]
    assert len(draft_us) == STEPS + 1
    assert draft_us[0] == 0.0 < draft_us[1] < draft_us[2]
    assert answer["fixed_us"] >= 0.0
    assert math.isfinite(answer["plain_fixed_us"])
    assert answer["reference_us"] > 0.0


def test_cells_measure_the_same_after_a_clock(runner: Runner) -> None:
    runner.ask(do="clock", batch=1, steps=1)
    sample = measured(runner, 3, 7)
    assert (sample["union_low"], sample["observed_width"]) == (7, 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape with weights in it, as transformers saves a model."""
    import torch
    from transformers import AutoConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(AutoConfig.from_pretrained(MODELS / "target"))
    for weight in model.parameters():
        if weight.ndim > 1:  # norms stay as they are
            torch.nn.init.normal_(weight, std=0.2)
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_weights_of_a_folder_decide_natural_routes(saved: Path, tmp_path: Path) -> None:
    """Twelve tokens activate as many experts as chance says, which dummies do not."""
    runner = Runner(tmp_path / "log")
    own = {**options()["sglang"], "model": str(saved)}
    opened = runner.ask(do="open", model=shape(), options=options(sglang=own))
    assert opened["fingerprint"]["weights"] == "auto"
    sample = measured(runner, 6, 0, batch=2, split="natural")
    assert sample["observed_union"] > 12.0
    runner.close()

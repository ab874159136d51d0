"""The runner's rounds on SGLang's own workers, through SGLang's branches for a GPU."""

from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from evict_profile import runner as module
from evict_profile.config import load_model
from evict_profile.runner import Runner
from tests.sglang.engine import MODELS

RUNNER = str(Path(__file__).with_name("gpu_branches.py"))
STEPS = 3


def options(topk, widths):
    folders = {"model": str(MODELS / "target"), "draft": str(MODELS / "draft")}
    own = {"steps": STEPS, "topk": topk, "attention_backend": "", "tp": 1}
    return {
        "device": "cpu",
        "dtype": "auto",
        "layers": "auto",
        "graphs": True,
        "seed": 0,
        "capture_sizes": widths,
        "max_width": max(widths),
        "max_context": 24,
        "max_batch": 2,
        "batches": [2],
        "engine": folders | own,
    }


@pytest.mark.parametrize(
    ("topk", "widths"),
    [pytest.param(4, [2, 4, 8], marks=pytest.mark.slow), (1, [2, 3, 4])],
    ids=["trees", "chains"],
)
def test_rounds_are_cut_to_each_width(topk, widths, tmp_path, monkeypatch):
    """After each cut step the drafter extends, and drafts from that. Chains are the
    quick part, since SGLang plans more for them on a GPU.
    """
    if Version(metadata.version("sglang")) < Version("0.5.22"):
        pytest.skip("SGLang plans a step for a GPU apart since 0.5.22")
    monkeypatch.setattr(module, "CLOCK_STEPS", 1)
    model = load_model(str(MODELS / "target/config.json"))
    with Runner(RUNNER, None, tmp_path / "log") as runner:
        runner.open(model, options(topk, widths))
        clock = runner.clock(2)
    assert [each.width for each in clock.rounds] == widths

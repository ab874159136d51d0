"""The command, from text to weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from runners import train_small_world
from runners.small_world import weights
from runners.small_world.recipe import RECIPES


def test_the_command_makes_a_world_that_loads(
    tmp_path: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Through the code that a GPU recipe runs, bfloat16 products included."""
    monkeypatch.setattr(train_small_world, "standard_library", lambda: library)
    out = tmp_path / "world"
    train_small_world.main(["--out", str(out), "--recipe", "tiny"])
    printed = capsys.readouterr().out
    assert "drafter step" in printed
    assert "held out: code" in printed
    world = weights.load_world(out)
    stored = load_file(out / weights.WEIGHTS)
    assert {t.dtype for t in stored.values()} == {torch.float16}
    assert torch.equal(world.target.head, stored["target.head"].float())
    assert torch.equal(world.drafter.join, stored["drafter.join"].float())
    assert world.target(torch.zeros(1, 4, dtype=torch.int64)).logits.isfinite().all()
    assert world.tokenizer.encode("import sys").ids
    about = json.loads((out / weights.ABOUT).read_text())
    assert (about["seed"], len(about["corpus"])) == (0, 64)


def test_a_finished_world_is_not_trained_again(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command writes the same weights, and makes no step."""
    monkeypatch.setattr(train_small_world, "standard_library", lambda: library)
    asked = ["--out", str(tmp_path / "world"), "--recipe", "tiny"]
    train_small_world.main(asked)
    before = (tmp_path / "world" / weights.WEIGHTS).read_bytes()
    monkeypatch.setattr(train_small_world.Training, "make_step", None)
    train_small_world.main(asked)
    assert (tmp_path / "world" / weights.WEIGHTS).read_bytes() == before


@pytest.mark.parametrize("minutes", ["-1", "0", "nan"])
def test_no_time_is_refused(
    tmp_path: Path, minutes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the folder is made, or a world in it is written anew."""
    with pytest.raises(SystemExit) as caught:
        train_small_world.main(["--out", str(tmp_path / "w"), f"--minutes={minutes}"])
    assert caught.value.code == 2
    assert f"--minutes {minutes}: must be a number above 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_for_a_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as caught:
        train_small_world.main(["--out", str(tmp_path / "file")])
    assert caught.value.code == 2
    assert "file: File exists; name a folder" in capsys.readouterr().err


def test_recipes_keep_to_what_the_kernels_and_the_issue_ask() -> None:
    """Rows of 16 bytes for grouped_mm, many thin layers, at least 64 experts."""
    for name in ("cpu", "gpu"):
        shape = RECIPES[name].shape
        bytes_each = 2 if RECIPES[name].autocast else 4
        assert shape.expert_width * bytes_each % 16 == 0
        assert shape.layers >= 16
        assert shape.experts >= 64
        assert shape.heads % shape.key_heads == 0

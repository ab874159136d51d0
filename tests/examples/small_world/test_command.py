"""The command, from text to weights."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file
from typer.main import get_command

from examples.small_world import train as module
from examples.small_world.__main__ import app
from examples.small_world.engine.checkpoint import ABOUT, WEIGHTS, load_checkpoint
from examples.small_world.engine.verifier import Verifier
from examples.small_world.recipe import RECIPES
from tests.examples.small_world.command import run
from tests.shipped import tracked


@pytest.fixture(scope="module")
def made(tmp_path_factory, module_library):
    """The folder of one run of the command, and what it printed."""
    out = tmp_path_factory.mktemp("world")
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "standard_library", lambda: module_library)
        patch.setattr(module, "say", printed.append)
        done = run("train", "--out", out, "--recipe", "tiny")
        assert done.exit_code == 0, done.output
        yield out, "\n".join(printed)


@pytest.mark.world
def test_the_command_makes_a_checkpoint_that_loads(made):
    """Through the code that a GPU recipe runs, bfloat16 products included."""
    out, printed = made
    assert "drafter step" in printed
    assert "held out: code" in printed
    world = load_checkpoint(out)
    stored = load_file(out / WEIGHTS)
    assert {t.dtype for t in stored.values()} == {torch.float16}
    assert torch.equal(world.stack.head, stored["target.head"].float())
    assert torch.equal(world.drafter.join, stored["drafter.join"].float())
    assert Verifier(world, 1, 4).read([0] * 4).logits.isfinite().all()
    assert world.tokenizer.encode("import sys").ids
    about = json.loads((out / ABOUT).read_text())
    assert (about["seed"], len(about["corpus"])) == (0, 64)


@pytest.mark.parametrize("minutes", ["-1", "0", "nan"])
def test_no_time_is_refused(tmp_path, minutes):
    done = run("train", "--out", tmp_path / "w", f"--minutes={minutes}")
    assert done.exit_code == 2
    assert f"--minutes {minutes}: must be a number above 0" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_for_a_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    done = run("train", "--out", tmp_path / "file")
    assert done.exit_code == 2 and done.stderr.startswith("error: ")


def test_seeds_at_temperature_0_are_refused(tmp_path):
    done = run("trace", tmp_path, "--out", "t", "--seeds", "7")
    assert done.exit_code == 2
    assert "--seeds has no effect " in done.stderr


def test_the_commands_that_pages_name_exist():
    commands = get_command(app).commands
    pages = tracked("README.md", "docs/*.md", "examples/*.md", "Makefile")
    text = "".join(page.read_text() for page in pages).replace("\\\n", " ")
    calls = re.findall(r"-m examples\.small_world ([a-z]+)([^`\n]*)", text)
    assert {name for name, _ in calls} == set(commands)
    for name, rest in calls:
        options = {option for p in commands[name].params for option in p.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options, (name, rest)


def test_the_recipe_keeps_to_what_the_kernels_need():
    """Rows of 16 bytes for grouped_mm."""
    shape = RECIPES["cpu"].shape
    assert 4 * shape.expert_width % 16 == 0
    assert shape.heads % shape.key_heads == 0

"""The plan that is shipped sweeps a GGUF by the script that it names."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from evict_profile.cells import OK
from evict_profile.config import load_sweep
from evict_profile.io import data_root
from evict_profile.sweep.checks import UnionTest
from evict_profile.sweep.store import Store
from tests.command import evict

PLAN = "examples/llama_cpp/sweep.yaml"
SMALL = {"width": [1, 2, 4, 8], "union": 3, "context": [16], "cells": 8}


@pytest.fixture
def swept(libllama, toy, tmp_path, monkeypatch):
    """A run by the commands of the page, with a smaller grid."""
    from examples.llama_cpp.__main__ import app

    # The toy lies in a cache and the machine may be busy.
    monkeypatch.setattr(UnionTest, "passed", True)
    written = CliRunner().invoke(app, ["model", str(toy)])
    plan = yaml.safe_load((data_root() / PLAN).read_text()) | {"grid": SMALL}
    for name, text in (("model", written.stdout), ("plan", yaml.safe_dump(plan))):
        (tmp_path / f"{name}.yaml").write_text(text)
    words = (tmp_path / "model.yaml", "--plan", tmp_path / "plan.yaml")
    to = ("--out", tmp_path / "run", "--tables", tmp_path / "tables")
    done = evict("sweep", *words, *to, folder=data_root())
    return done, Store(tmp_path / "run")


def test_a_toy_is_swept_to_its_fit(swept):
    """Whether its table is good is for a quiet machine to say."""
    done, store = swept
    assert re.search(r"passed coverage: (\d+) of \1 cells measured", done.output)
    header, frame = store.header(), store.frame()
    facts = header.fingerprint
    assert (facts["engine"], facts["layers"]) == ("llama_cpp", 2)
    assert header.sweep.whole and header.model.source.endswith("toy.gguf")
    forced = frame[(frame["union"] > 0) & (frame["status"] == OK)]
    assert len(forced) > 8 and (forced["observed_union"] == forced["union"]).all()


def test_the_plan_names_files_of_the_checkout():
    plan = load_sweep(str(data_root() / PLAN))
    assert (data_root() / plan.runner) == Path(PLAN).with_name("runner.py").absolute()

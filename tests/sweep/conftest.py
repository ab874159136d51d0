"""Small sweeps over the scripted runner, and a way to compare two runs exactly."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from evict_profile.cells import UNTIMED, Sample
from evict_profile.config import GridSpec, StopSpec, SweepSpec, load_model
from evict_profile.deadline import Deadline
from evict_profile.records import replace
from evict_profile.sweep import engine
from evict_profile.sweep.engine import run_sweep
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.session import OpenRunner
from evict_profile.sweep.store import Header, Store

SCRIPTED = Path(__file__).parents[1] / "runners" / "scripted.py"
OF_THE_MOMENT = ["at_unix", "events", "session"]

Sweeping = Callable[..., bool]
OpenRunners = Callable[..., OpenRunner]


def comparable(frame):
    """All columns of a run but what the moment of measuring put there."""
    return frame.drop(columns=OF_THE_MOMENT)


def round_of(grid, number, cells=None):
    return [
        Sample(c, number, i, 97 * number + i, replace(UNTIMED, clock_us=1000.0 + i))
        for i, c in enumerate(grid.cells[:cells])
    ]


class After(Deadline):
    """A deadline that is reached when it has been asked so many times."""

    def __init__(self, checks):
        super().__init__()
        self.checks = checks

    def reached(self):
        """Count down; asked once a round and once a cell."""
        self.checks -= 1
        return self.checks < 0


@pytest.fixture(scope="session")
def model():
    return load_model("tiny")


@pytest.fixture(scope="session")
def spec():
    """A sweep of 29 cells that the scripted runner ends in about nine rounds."""
    return SweepSpec(
        name="scripted",
        grid=GridSpec(
            width=(1, 2, 4, 8), union=4, context=(64,), batch=(1, 2), max_tokens=8
        ),
        stop=StopSpec(relative_half_width=0.01, min_samples=6, max_samples=12),
        runner=str(SCRIPTED),
        seed=5,
    )


@pytest.fixture
def grid(spec, model):
    return make_grid(spec, model)


@pytest.fixture
def open_session(spec, model, grid, tmp_path):
    """Opens the scripted runner for `spec`, or for a variation of it."""

    def opened(**changes):
        return OpenRunner(
            replace(spec, **changes), model, grid, tmp_path / "runner.log"
        )

    return opened


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


@pytest.fixture
def header(spec, model):
    facts = {"device": "paper", "layers": 2}
    opened = {"capture_sizes": [], "bandwidth_gbps": 10.0, "bytes_per_expert": 1572864}
    return Header(model, spec, facts, opened, {"differ": True}, 1.0)


@pytest.fixture
def sweep(spec, model, monkeypatch):
    """Runs `spec`, or a variation of it, into a store: True when finished."""

    def run(store, checks=math.inf, console=None, **changes):
        varied, shown = replace(spec, **changes), console or Console(quiet=True)
        monkeypatch.setattr(engine, "Deadline", lambda *_: After(checks))
        return run_sweep(varied, model, store, console=shown)

    return run


def swept(spec, model, folder):
    store, quiet = Store(folder / "run"), Console(quiet=True)
    assert run_sweep(spec, model, store, console=quiet)
    return store


@pytest.fixture(scope="session")
def whole(spec, model, tmp_path_factory):
    return swept(spec, model, tmp_path_factory.mktemp("whole")).frame()

"""A small fleet of the scripted runner."""

from pathlib import Path

import pytest
import yaml

from evict_profile.fleet import run
from evict_profile.fleet.run import FleetFolder
from evict_profile.fleet.spec import jobs_of, load_fleet
from tests.sweep.conftest import SCRIPTED

SHORT = {
    "name": "short",
    "grid": {"width": [1, 2, 4, 8], "union": 4, "context": [64], "batch": [1, 2]},
    "stop": {"relative_half_width": 0.04, "min_samples": 6, "max_samples": 7},
}
FLEET = {
    "name": "few",
    "models": ["tiny"],
    "sweeps": ["short.yaml"],
    "dtypes": ["bfloat16"],
    "runners": {"scripted": {"runner": str(SCRIPTED)}},
    "devices": {"cpu": {}},
}
NAME = "tiny_short_bfloat16_scripted_cpu"


def write_fleet(home, env=None, **changes):
    """Write a fleet, or a variation of it, into a folder."""
    (home / "short.yaml").write_text(yaml.safe_dump(SHORT))
    runners = {"scripted": {"runner": str(SCRIPTED), "env": env or {}}}
    fleet = {**FLEET, "runners": runners, **changes}
    (home / "fleet.yaml").write_text(yaml.safe_dump(fleet))


@pytest.fixture
def fleet_of(tmp_path, monkeypatch):
    """Writes a fleet and reads it; reports are not drawn, which takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "write_report", lambda fitted, table, path: path.touch())

    def make(**changes):
        write_fleet(tmp_path, **changes)
        return load_fleet(Path("fleet.yaml"))

    return make


@pytest.fixture
def frozen(fleet_of, tmp_path):
    """A fleet of one job: its folder, itself, and the job."""
    fleet = fleet_of()
    folder, jobs = FleetFolder(tmp_path / "fleet"), jobs_of(fleet)
    folder.write_plan(jobs)
    return folder, fleet, jobs[0]

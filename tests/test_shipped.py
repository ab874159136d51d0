"""Tests read what the repository ships, and nothing that a user's commands wrote."""

import os
import subprocess
from pathlib import Path

from tests import shipped


def test_what_a_command_wrote_is_not_shipped(tmp_path, monkeypatch):
    """As `make demo`, which writes its table below cost_tables/."""
    monkeypatch.setattr(shipped, "data_root", lambda: tmp_path)
    for name in ("ours", "theirs"):
        (tmp_path / "cost_tables" / name).mkdir(parents=True)
        (tmp_path / "cost_tables" / name / "1.0.0.json").touch()
    for words in (("init", "--quiet"), ("add", "cost_tables/ours")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    [path] = shipped.tracked("cost_tables/*.json")
    assert path.parent.name == "ours"


def test_no_test_lists_tables_or_reads_a_users_variables():
    assert not [name for name in os.environ if name.startswith("EVICT_PROFILE_")]
    for path in shipped.tracked("tests/*.py"):
        lines = path.read_text().splitlines()
        listing = [each for each in lines if "cost_tables" in each and "glob(" in each]
        assert path == Path(__file__) or not listing, path

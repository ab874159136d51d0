"""The scripts for a GPU: what they call is there."""

import re
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from evict_profile.cli import app

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "scripts/gpu").glob("*.sh"))
TEXT = "".join(path.read_text() for path in SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_whole(path):
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_files_and_commands_are_there():
    for name in re.findall(r"(?:benchmarks|configs/sweeps)/\w+\.(?:py|yaml)", TEXT):
        assert (ROOT / name).is_file(), name
    commands = get_command(app).commands
    for name in re.findall(r"-m evict_profile (\w+)|evict \S+ \S+ (\w+)", TEXT):
        assert "".join(name) in commands


def test_a_step_that_is_done_is_not_run_again(tmp_path):
    script = f'OUT={tmp_path}; source scripts/gpu/steps.sh; step a 5 touch "$OUT/a"'
    for _ in range(2):
        assert (
            subprocess.run(["bash", "-c", script], cwd=ROOT, check=False).returncode
            == 0
        )
        (tmp_path / "a").unlink(missing_ok=True)
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "done/a").exists() and (tmp_path / "results.tar.gz").exists()

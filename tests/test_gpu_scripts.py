"""The scripts for a GPU: what they call is there."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from evict_profile.cli import app
from evict_profile.config import load_sweep

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "scripts/gpu").glob("*.sh"))
TEXT = "".join(path.read_text() for path in SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_whole(path):
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_files_and_commands_are_there():
    files = r"(?:benchmarks|configs/sweeps|scripts/gpu)/\w+\.(?:py|sh|yaml)"
    for name in re.findall(files, TEXT):
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


TIMEOUT = """#!/bin/sh
echo "$3" >> "$OUT/limits"
"""


def test_the_first_half_hour_is_thirty_minutes(tmp_path):
    """Every step is reached, with two versions of SGLang; nothing is run."""
    tools = tmp_path / "tools"
    for name, text in {"timeout": TIMEOUT, "nsys": "#!/bin/sh\n"}.items():
        tools.mkdir(exist_ok=True)
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    for swept in ("trees", "chains", "sweep"):
        folder = tmp_path / f"tables-{swept}/gpu/model/sglang"
        folder.mkdir(parents=True)
        (folder / "1.0.0.json").touch()
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving/ours.json").touch()
    own = {"OUT": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"}
    own |= {"PYTHON": "true", "SGLANG_PYTHON": "false", "OTHER_PYTHON": "false"}
    words = ["bash", "scripts/gpu/first.sh"]
    environment = {**os.environ, **own, "LIMIT_S": "3600"}
    done = subprocess.run(words, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0
    limits = [*map(int, (tmp_path / "limits").read_text().split())]
    assert len(limits) == 15
    assert sum(limits) <= 1800
    for plan in ("trees", "chains"):
        load_sweep(str(tmp_path / f"{plan}.yaml"))
    assert load_sweep(str(tmp_path / "chains.yaml")).engine["topk"] == 1

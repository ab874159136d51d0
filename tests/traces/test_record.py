"""A recording ends the same however often it was cut short."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from evict_profile.errors import ConfigError, RunnerError
from evict_profile.records import replace
from evict_profile.runner import RunnerRefusal
from evict_profile.traces import load_traces
from evict_profile.traces.record import TracePlan, TraceRecording
from evict_profile.traces.recording import carry_out
from tests.traces import fake_runner
from tests.traces.synthetic import ABOUT

ROOT = Path(__file__).parents[2]
PLAN = TracePlan(
    prompts=3,
    tokens=4,
    seeds=2,
    temperatures=(0.0, 1.0),
    batches=(1, 4),
    depth=3,
    topk=4,
    nodes=12,
)
OPTIONS = [
    "--prompts=3", "--tokens=4", "--seeds=2", "--temperature=0", "--temperature=1",
    "--batch=1", "--batch=4", "--depth=3", "--topk=4", "--nodes=12",
]  # fmt: skip
REPLIES = 18
"""Two workloads, three prompts: one reply at temperature 0, two at 1."""


def recorded(out, plan=PLAN):
    quiet, runner = Console(quiet=True), str(fake_runner.PATH)
    carry_out(TraceRecording, ROOT, out, plan, quiet, runner=runner)
    return pq.read_table(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(folder):
    """A recording that nothing cut short, and the journal of what was asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_JOURNAL", str(folder / "journal"))
        return recorded(folder / "trace.parquet")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "trace.parquet"


@pytest.mark.usefixtures("whole")
def test_all_that_was_asked_for_is_recorded(folder):
    trace = load_traces(folder / "trace.parquet")
    assert len(trace.replies) == REPLIES
    assert trace.dense
    assert trace.about == replace(ABOUT, depth=3, topk=4, nodes=12, reference_us=100.0)
    assert [clock.batch for clock in trace.clocks] == [1, 4]
    lines = (folder / "journal").read_text().splitlines()
    assert lines[:2] == ["clock 1", "clock 4"]
    assert len(set(lines[2:])) == len(lines[2:]) == REPLIES


def test_what_the_world_refuses_leaves_nothing(out):
    with pytest.raises(RunnerRefusal, match="--tokens: 500 at most"):
        recorded(out, replace(PLAN, tokens=501))
    assert not list(out.parent.iterdir())


def test_a_reply_that_cannot_be_is_not_stored(out, monkeypatch):
    monkeypatch.setenv("FAKE_RISING", "code, prompt 0, seed 1, temperature 1")
    with pytest.raises(RunnerError, match=r"reply \(code, prompt 0, seed 1,.* rises"):
        recorded(out)
    stored = out.with_name(f"{out.name}.parts").glob("*.parquet")
    assert [path.name for path in sorted(stored)] == [
        f"0000{i}.parquet" for i in range(4)
    ]


def test_a_world_that_is_no_folder_is_refused(out):
    with pytest.raises(ConfigError, match="is no folder; give a small world"):
        carry_out(TraceRecording, ROOT / "nowhere", out, PLAN, Console(quiet=True))


@pytest.fixture
def python(tmp_path):
    """An interpreter that runs the fake runner, whatever it is told to run."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {fake_runner.PATH}\n")
    path.chmod(0o755)
    return path


def start(out, python, sleep_s):
    command = [sys.executable, "-m", "evict_profile", "trace", "worlds/stdlib"]
    return subprocess.Popen(
        [*command, "--out", str(out), "--python", str(python), *OPTIONS],
        cwd=ROOT,
        env={**os.environ, "FAKE_SLEEP": str(sleep_s)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_parts(running, out, count):
    parts = out.with_name(f"{out.name}.parts")
    while running.poll() is None and len(list(parts.glob("*.parquet"))) < count:
        time.sleep(0.01)


def test_ctrl_c_ends_the_reply_in_flight_and_the_command_continues(out, python, whole):
    """Exit code 130 and one sentence; then the same recording as ever."""
    running = start(out, python, 0.1)
    wait_for_parts(running, out, 2)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate()
    assert running.returncode == 130
    assert errors.splitlines()[-1] == (
        f"interrupted; {out}.parts is kept, the same command continues it"
    )
    said, errors = start(out, python, 0.0).communicate()
    assert f"continuing {out}.parts" in said
    assert said.splitlines()[-1] == f"trace: {out} (18 replies, 72 steps)"
    assert pq.read_table(out).equals(whole, check_metadata=True), errors


def test_a_kill_leaves_whole_parts_and_costs_one_reply(out, python, whole, monkeypatch):
    journal = out.with_name("journal")
    monkeypatch.setenv("FAKE_JOURNAL", str(journal))
    running = start(out, python, 0.1)
    wait_for_parts(running, out, 3)
    running.kill()
    running.communicate()
    before = {path: path.read_bytes() for path in out.parent.rglob("*.parquet")}
    assert all(pq.read_table(path).num_rows == 4 for path in before)
    start(out, python, 0.0).communicate()
    assert pq.read_table(out).equals(whole, check_metadata=True)
    asked = [line for line in journal.read_text().splitlines() if "clock" not in line]
    assert len(asked) - len(set(asked)) <= 1

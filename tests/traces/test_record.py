"""A recording ends the same however often it was cut short."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from evict_profile.errors import ConfigError, RunnerError, StoreError
from evict_profile.records import replace
from evict_profile.runner import RunnerCrash, RunnerRefusal
from evict_profile.traces import load_traces
from evict_profile.traces.record import TracePlan, TraceRecording
from evict_profile.traces.recording import RecordingFolder, carry_out
from evict_profile.traces.schema import TRACE
from tests.traces.synthetic import ABOUT

ROOT = Path(__file__).parents[2]
FAKE_RUNNER = Path(__file__).parent / "fake_runner.py"
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


def recorded(out: Path, plan: TracePlan = PLAN) -> pa.Table:
    quiet = Console(quiet=True)
    carry_out(TraceRecording, ROOT, out, plan, quiet, runner=str(FAKE_RUNNER))
    return pq.read_table(out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    return recorded(tmp_path_factory.mktemp("whole") / "trace.parquet")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "trace.parquet"


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACED_JOURNAL", str(tmp_path / "journal"))
    return tmp_path / "journal"


def test_all_that_was_asked_for_is_recorded(out: Path, journal: Path) -> None:
    recorded(out)
    trace = load_traces(out)
    assert len(trace.replies) == REPLIES
    assert trace.dense
    assert trace.about == replace(ABOUT, depth=3, topk=4, nodes=12)
    assert [clock.batch for clock in trace.clocks] == [1, 4]
    lines = journal.read_text().splitlines()
    assert lines[:2] == ["clock 1", "clock 4"]
    assert len(set(lines[2:])) == len(lines[2:]) == REPLIES


def test_a_finished_recording_is_left_alone(
    out: Path, whole: pa.Table, journal: Path
) -> None:
    pq.write_table(whole, out)
    before = out.read_bytes()
    recorded(out)
    assert out.read_bytes() == before
    assert not journal.exists()


def test_a_runner_that_dies_costs_the_reply_it_was_in(
    out: Path, whole: pa.Table, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command records the rest, no reply twice, and ends the same."""
    with monkeypatch.context() as crashing:
        crashing.setenv("TRACED_CRASH", "1")
        with pytest.raises(RunnerCrash, match="ended with status 7"):
            recorded(out)
    assert not out.exists()
    assert recorded(out).equals(whole, check_metadata=True)
    lines = journal.read_text().splitlines()
    assert len(lines) == len(set(lines)) == REPLIES + len(PLAN.batches)


def test_another_plan_is_refused_by_name(out: Path, whole: pa.Table) -> None:
    pq.write_table(whole, out)
    with pytest.raises(StoreError, match="tokens: 5 here, 4 there"):
        recorded(out, replace(PLAN, tokens=5))


def test_a_runner_that_dies_before_a_reply_leaves_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the clocks that it had taken either: they take seconds."""
    monkeypatch.setenv("TRACED_UNCLOCKED", "4")
    with pytest.raises(RunnerCrash, match="ended with status 7"):
        recorded(out)
    assert not list(out.parent.iterdir())


def test_a_recording_without_replies_is_begun_anew(out: Path, whole: pa.Table) -> None:
    store = RecordingFolder(out, TRACE)
    plan = replace(PLAN, tokens=5, workloads=("code", "prose"))
    store.begin(plan.facts(ABOUT))
    told = Console(file=io.StringIO())
    carry_out(TraceRecording, ROOT, out, PLAN, told, runner=str(FAKE_RUNNER))
    said = told.file.getvalue()  # type: ignore[attr-defined]
    assert "trace.parquet.parts: held no reply yet" in said.replace("\n", "")
    assert pq.read_table(out).equals(whole, check_metadata=True)


def test_what_the_world_refuses_leaves_nothing(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACED_JOURNAL", str(tmp_path / "journal"))
    with pytest.raises(RunnerRefusal, match="--tokens: 500 at most"):
        recorded(out, replace(PLAN, tokens=501))
    assert not list(tmp_path.iterdir())


def test_a_reply_that_cannot_be_is_not_stored(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACED_WRONG", "2")
    with pytest.raises(RunnerError, match=r"reply \(code, prompt 2, seed 0,.* rises"):
        recorded(out)
    stored = sorted(path.name for path in out.with_name(f"{out.name}.parts").iterdir())
    assert stored[:2] == ["00000.parquet", "00001.parquet"]
    assert "00012.parquet" not in stored


def test_a_world_that_is_no_folder_is_refused(out: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder; give a small world"):
        carry_out(TraceRecording, ROOT / "nowhere", out, PLAN, Console(quiet=True))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that runs the fake runner, whatever it is told to run."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {FAKE_RUNNER}\n")
    path.chmod(0o755)
    return path


def start(out: Path, python: Path, sleep_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "evict_profile", "trace", "worlds/stdlib"]
    return subprocess.Popen(
        [*command, "--out", str(out), "--python", str(python), *OPTIONS],
        cwd=ROOT,
        env={**os.environ, "TRACED_SLEEP": str(sleep_s)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_parts(running: subprocess.Popen[str], out: Path, count: int) -> None:
    parts = out.with_name(f"{out.name}.parts")
    while running.poll() is None and len(list(parts.glob("*.parquet"))) < count:
        time.sleep(0.01)


def test_ctrl_c_ends_the_reply_in_flight_and_the_command_continues(
    out: Path, python: Path, whole: pa.Table
) -> None:
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


def test_kills_leave_whole_parts_and_cost_a_reply_each(
    out: Path, python: Path, whole: pa.Table, journal: Path
) -> None:
    for kills, stored in enumerate((1, 6), start=1):
        running = start(out, python, 0.1)
        wait_for_parts(running, out, stored)
        before = {p: p.read_bytes() for p in out.parent.rglob("*.parquet")}
        running.kill()
        running.communicate()
        assert all(pq.read_table(p).num_rows == 4 for p in before)
        assert all(p.read_bytes() == content for p, content in before.items())
        asked = [
            line for line in journal.read_text().splitlines() if "clock" not in line
        ]
        assert len(asked) - len(set(asked)) <= kills
    start(out, python, 0.0).communicate()
    assert pq.read_table(out).equals(whole, check_metadata=True)

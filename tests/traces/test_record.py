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

from evict_profile.errors import (
    ConfigError,
    Interrupted,
    RunnerError,
    StoreError,
    TraceError,
)
from evict_profile.records import replace
from evict_profile.runner import RunnerCrash, RunnerRefusal
from evict_profile.traces import load_traces
from evict_profile.traces.record import TracePlan
from evict_profile.traces.recording import record
from tests.traces import fake_runner
from tests.traces.synthetic import ABOUT, write_trace

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
REPLY = "code, prompt 1, seed 0, temperature 0"


def recorded(out, plan=PLAN):
    record(plan, ROOT, out, Console(quiet=True), runner=str(fake_runner.PATH))
    return parts_of(out)


def parts_of(out):
    tables = {path.name: pq.read_table(path) for path in out.glob("*.parquet")}
    return {name: (t.to_pydict(), t.schema.metadata) for name, t in tables.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(folder):
    """A recording that nothing cut short, and the journal of what was asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_JOURNAL", str(folder / "journal"))
        return recorded(folder / "trace")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "trace"


@pytest.fixture
def journal(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    monkeypatch.setenv("FAKE_JOURNAL", str(path))
    return lambda: path.read_text().splitlines()


def test_all_that_was_asked_for_is_recorded(whole, folder):
    trace = load_traces(folder / "trace")
    assert len(trace.replies) == len(whole) == REPLIES
    assert trace.dense
    assert trace.about == replace(ABOUT, depth=3, topk=4, nodes=12, reference_us=100.0)
    assert [clock.batch for clock in trace.clocks] == [1, 4]
    lines = (folder / "journal").read_text().splitlines()
    assert lines[:2] == ["clock 1", "clock 4"]
    assert len(set(lines[2:])) == len(lines[2:]) == REPLIES
    assert len(list((folder / "trace").iterdir())) == REPLIES


@pytest.mark.usefixtures("whole")
def test_what_is_recorded_is_left_alone(folder, journal):
    before = parts_of(folder / "trace")
    journal_before = (folder / "journal").read_text()
    assert recorded(folder / "trace") == before
    assert (folder / "journal").read_text() == journal_before


def test_a_runner_that_dies_costs_what_it_was_asked(out, whole, journal, monkeypatch):
    """The next command goes on there, asks nothing else twice, and ends the same; its
    clocks are stated by the reference of the first."""
    monkeypatch.setenv("FAKE_CRASH", REPLY)
    with pytest.raises(RunnerCrash, match="ended with status 7"):
        recorded(out)
    monkeypatch.delenv("FAKE_CRASH")
    monkeypatch.setenv("FAKE_REFERENCE", "200")
    with pytest.raises(TraceError, match="holds 6 of 18 replies; run the same"):
        load_traces(out)
    assert recorded(out) == whole
    assert sorted(journal()) == sorted([*set(journal()), REPLY])


def test_a_deleted_part_is_recorded_again(out, whole):
    recorded(out)
    (out / "00002.parquet").unlink()
    assert recorded(out) == whole


def test_another_recording_is_refused_by_name(out):
    small = replace(PLAN, prompts=1, temperatures=(0.0,), seeds=1)
    recorded(out, small)
    with pytest.raises(StoreError, match=r"tokens: 9 here, 4 there\); choose another"):
        recorded(out, replace(small, tokens=9))
    with pytest.raises(StoreError, match=r"batches: .* here, .* there"):
        recorded(out, replace(small, batches=(1,)))


def test_a_servers_trace_is_kept(out):
    out.mkdir()
    path = write_trace(out / "9-000000.parquet")
    before = path.read_bytes()
    with pytest.raises(TraceError, match="has not recorded; choose another --out"):
        recorded(out)
    assert [path.read_bytes() for path in out.iterdir()] == [before]


def test_an_unwritable_place_is_known_at_once(out):
    out.write_text("in the way")
    with pytest.raises(StoreError, match="trace"):
        recorded(out)


def test_what_the_world_refuses_leaves_nothing(out):
    with pytest.raises(RunnerRefusal, match="--tokens: 500 at most"):
        recorded(out, replace(PLAN, tokens=501))
    assert not list(out.parent.iterdir())


def test_ctrl_c_while_clocks_are_taken_leaves_nothing(out, monkeypatch):
    monkeypatch.setenv("FAKE_SIGNAL", f"clock 1={signal.SIGINT.value}")
    with pytest.raises(Interrupted, match="before the first reply; nothing is kept"):
        recorded(out)
    assert not list(out.parent.iterdir())


def test_a_reply_that_cannot_be_is_not_stored(out, monkeypatch):
    monkeypatch.setenv("FAKE_RISING", "code, prompt 0, seed 1, temperature 1")
    with pytest.raises(RunnerError, match=r"reply \(code, prompt 0, seed 1,.* rises"):
        recorded(out)
    assert sorted(parts_of(out)) == [f"0000{i}.parquet" for i in range(4)]


def test_a_world_that_is_no_folder_is_refused(out):
    with pytest.raises(ConfigError, match="is no folder; give a small world"):
        record(PLAN, ROOT / "nowhere", out, Console(quiet=True))


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
    while running.poll() is None and len(list(out.glob("*.parquet"))) < count:
        time.sleep(0.01)


def test_ctrl_c_ends_the_reply_in_flight_and_the_command_continues(out, python, whole):
    """Exit code 130 and one sentence; then the same recording as ever."""
    running = start(out, python, 0.1)
    wait_for_parts(running, out, 2)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate()
    assert running.returncode == 130
    assert errors.splitlines()[-1] == (
        f"interrupted; {out} is kept, the same command continues it"
    )
    said, errors = start(out, python, 0.0).communicate()
    assert f"continuing {out}" in said
    assert said.splitlines()[-1] == f"recording: {out} (18 replies)"
    assert parts_of(out) == whole, errors


def test_a_kill_leaves_whole_parts_and_costs_one_reply(out, python, whole, journal):
    running = start(out, python, 0.1)
    wait_for_parts(running, out, 3)
    running.kill()
    running.communicate()
    before = parts_of(out)
    assert before == {name: whole[name] for name in before}
    start(out, python, 0.0).communicate()
    assert parts_of(out) == whole
    asked = [line for line in journal() if "clock" not in line]
    assert len(asked) - len(set(asked)) <= 1

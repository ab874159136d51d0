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

from evict_profile.errors import ConfigError, DataError, Interrupted
from evict_profile.records import replace
from evict_profile.traces import Reply, load_traces
from evict_profile.traces.load import parts_of
from examples.small_world.engine import session as module
from examples.small_world.plans import TracePlan
from examples.small_world.recording import record
from tests.traces.synthetic import write_trace

ROOT = Path(__file__).parents[3]
SMALL = {"depth": 3, "topk": 3, "nodes": 10, "prompt_tokens": 12}
PLAN = TracePlan(
    prompts=3, tokens=4, seeds=2, temperatures=(0.0, 1.0), batches=(1, 2), **SMALL
)
REPLIES = 9
"""One workload, three prompts: one reply at temperature 0, two at 1."""
REPLY = Reply("prose", 1, 0, 0.0)
TIMED = {"draft_us", "verify_us", "fixed_us"}


pytestmark = pytest.mark.usefixtures("opened")


def recorded(out, plan=PLAN):
    record(plan, ROOT, out, Console(quiet=True))
    return contents(out)


def contents(out):
    """What no clock says."""
    tables = {path.name: pq.read_table(path) for path in out.glob("*.parquet")}
    return {n: t.drop_columns(list(TIMED)).to_pydict() for n, t in tables.items()}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "trace"


@pytest.fixture
def asked(monkeypatch):
    """The replies that the engine was asked for; `befalls[reply]` is called first."""
    asked, trace = [], module.TraceSession.trace

    def noted(session, reply, prompts, tokens):
        asked.append(reply)
        if reply in noted.befalls:
            noted.befalls[reply]()
        return trace(session, reply, prompts, tokens)

    noted.befalls, noted.asked = {}, asked
    monkeypatch.setattr(module.TraceSession, "trace", noted)
    return noted


def test_all_that_was_asked_for_is_recorded(out, asked):
    whole = recorded(out)
    trace = load_traces(out)
    assert len(trace.replies) == len(whole) == REPLIES
    assert trace.dense and trace.routes is not None
    about = trace.about
    assert (about.model, about.depth, about.topk, about.nodes) == ("any", 3, 3, 10)
    assert [clock.batch for clock in trace.clocks] == [1, 2]
    assert len(list(out.iterdir())) == REPLIES
    assert recorded(out) == whole
    assert len(asked.asked) == REPLIES, "what is recorded is left alone"


def test_a_crash_costs_one_reply(out, asked, monkeypatch):
    """The next command goes on there and asks nothing else twice; its times are stated
    by the reference of the first."""

    def crash():
        raise RuntimeError("no memory")

    asked.befalls[REPLY] = crash
    with pytest.raises(RuntimeError):
        recorded(out)
    with pytest.raises(DataError, match="holds 3 of 9 replies; run the command"):
        load_traces(out)
    asked.befalls.clear()
    whole = recorded(out)
    assert sorted(asked.asked, key=str) == sorted([*PLAN_REPLIES, REPLY], key=str)
    assert len({part.metadata.about for part in parts_of(out)}) == 1
    (out / "00002.parquet").unlink()
    assert recorded(out) == whole == recorded(out.with_name("other"))


PLAN_REPLIES = [*replace(PLAN, workloads=("prose",)).replies()]


def test_ctrl_c_ends_the_reply_in_flight(out, asked):
    asked.befalls[REPLY] = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Interrupted, match="is kept, the same command continues it"):
        recorded(out)
    assert sorted(contents(out)) == [f"0000{i}.parquet" for i in range(4)]


def test_ctrl_c_while_clocks_are_taken_leaves_nothing(out, monkeypatch):
    clock = module.TraceSession.clock

    def interrupted(session, batch):
        os.kill(os.getpid(), signal.SIGINT)
        return clock(session, batch, 2)

    monkeypatch.setattr(module.TraceSession, "clock", interrupted)
    with pytest.raises(Interrupted, match="before the first reply; nothing is kept"):
        recorded(out)
    assert not list(out.parent.iterdir())


def test_another_recording_is_refused_by_name(out):
    small = replace(PLAN, prompts=1, temperatures=(0.0,), seeds=1)
    recorded(out, small)
    with pytest.raises(DataError, match=r"tokens: 9 here, 4 there\); choose another"):
        recorded(out, replace(small, tokens=9))
    with pytest.raises(DataError, match=r"batches: .* here, .* there"):
        recorded(out, replace(small, batches=(1,)))


def test_a_servers_trace_is_kept(out):
    out.mkdir()
    path = write_trace(out / "9-000000.parquet")
    before = path.read_bytes()
    with pytest.raises(DataError, match="has not recorded; choose another --out"):
        recorded(out)
    assert [path.read_bytes() for path in out.iterdir()] == [before]


def test_an_unwritable_place_is_known_at_once(out):
    out.write_text("in the way")
    with pytest.raises(DataError, match="trace"):
        recorded(out)


def test_what_the_world_refuses_leaves_nothing(out):
    with pytest.raises(ConfigError, match="replies of 1024 at most"):
        recorded(out, replace(PLAN, tokens=1025))
    assert not list(out.parent.iterdir())


@pytest.mark.world
def test_a_kill_leaves_whole_parts(out):
    """Of the shipped world, by the command."""
    command = [
        sys.executable,
        "-m",
        "examples.small_world",
        "trace",
        "examples/small_world/stdlib",
    ]
    command += ["--out", str(out), "--prompts=4", "--tokens=16", "--batch=1"]
    running = subprocess.Popen(command, cwd=ROOT)
    while running.poll() is None and len(list(out.glob("*.parquet"))) < 2:
        time.sleep(0.01)
    running.kill()
    running.wait()
    before = contents(out)
    assert 2 <= len(before) < 8
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"continuing {out}" in done.stdout
    assert done.stdout.splitlines()[-1] == f"recording: {out} (8 replies)"
    assert before.items() <= contents(out).items()
    assert len(load_traces(out).replies) == 8

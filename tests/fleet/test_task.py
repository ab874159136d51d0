"""What a node runs: a sweep in a process of its own, whose rounds leave one by one."""

import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from evict_profile.fleet.task import ShardRequest, measure
from evict_profile.records import to_mapping

Measured = Mapping[str, Mapping[str, bytes]]
ROOT = str(Path(__file__).parents[2])


def asked(job, silence_s=60.0, **env):
    """What a driver asks for a shard."""
    mappings = to_mapping(job.pair.model), to_mapping(job.pair.sweep)
    return ShardRequest(*mappings, job.shard, "", env, 10.0, silence_s)


@pytest.fixture
def job(plan, monkeypatch):
    """A shard; its sweep leaves no process behind."""
    monkeypatch.setenv("PYTHONPATH", ROOT)
    yield plan.pairs[0].jobs[0]
    assert not psutil.Process().children(recursive=True)


@pytest.mark.slow
def test_rounds_leave_one_by_one_and_go_on_from_what_is_sent(job, folder, measured):
    """Only what is new; with what the first try measured, the whole shard is there."""
    first = list(measure(asked(job, SCRIPTED_SLEEP="0.03"), {}, "node"))
    assert [first[0].kind, first[-1].kind] == ["started", "ended"]
    assert (first[0].node, first[0].pid) == ("node", os.getpid())
    sent = [set(event.files) for event in first if event.files]
    assert len(sent) >= 3
    assert "sweep.json" in sent[0]
    assert sum(map(len, sent)) == len(set().union(*sent))
    files: dict[str, bytes] = {}
    for event in first:
        files |= event.files
    assert files.keys() == measured["1/2"].keys()
    some = {k: v for k, v in files.items() if "00001" in k or k == "sweep.json"}
    rest: dict[str, bytes] = {}
    for event in measure(asked(job), some, "node"):
        rest |= event.files
        assert event.kind != "ended" or event.words == ""
    assert not rest.keys() & some.keys()
    folder.keep(job, {**some, **rest})
    assert folder.finished(job)


def last_of(events):
    """The last event."""
    *_, last = events
    return last


@pytest.mark.slow
def test_a_sweep_that_cannot_begin_says_why(job):
    """In the sentence that the command prints."""
    last = last_of(measure(asked(job, SCRIPTED_SLOPE="0"), {}, "node"))
    assert last.kind == "ended"
    assert last.words.startswith("union test failed")


@pytest.mark.slow
def test_a_sweep_that_hangs_is_ended(job):
    """It, and its runner, which would go on measuring for nobody."""
    hangs = asked(job, silence_s=6.0, SCRIPTED_SLEEP="1000")
    assert last_of(measure(hangs, {}, "node")).words.endswith("0.1 min: it hangs")

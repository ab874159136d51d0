"""What the driver does when all is well, and when a node, a sweep or a disk is not."""

from collections.abc import Mapping

import pytest

from evict_profile.deadline import Deadline
from evict_profile.errors import StoreError
from evict_profile.fleet.task import Event

Measured = Mapping[str, Mapping[str, bytes]]
NAME = "tiny_short_bfloat16_scripted_cpu"


def at(node):
    """A task that began on a node."""
    return Event("started", node=node, host=f"host-{node}")


def whole(files, node="a"):
    """A try that measures all."""
    return [at(node), Event("beat", files=files, words="round 1"), Event("ended")]


def broken(why, node="a"):
    """A try that ends with a reason."""
    return [at(node), Event("ended", words=why)]


def test_a_pair_is_published_when_all_its_shards_are_whole(drive, folder, measured):
    late = [at("b"), *[Event("beat")] * 3, *whole(measured["2/2"], "b")[1:]]
    _, publisher = drive({"1/2": [whole(measured["1/2"])], "2/2": [late]})
    assert [pair.name for pair in publisher.pairs] == [NAME]
    outcome = folder.outcomes()[NAME]
    assert (outcome.state, outcome.tries) == ("published", 2)
    assert outcome.nodes == ("host-a", "host-b")


def test_a_shard_that_fails_is_tried_elsewhere_with_what_it_has(drive, measured):
    files = dict(measured["1/2"])
    last = max(files)
    some = {name: content for name, content in files.items() if name != last}
    lost = [at("a"), Event("beat", files=some), Event("ended", words="node died")]
    rest = [at("b"), Event("beat", files={last: files[last]}), Event("ended")]
    cluster, publisher = drive(
        {"1/2": [lost, rest], "2/2": [whole(measured["2/2"], "b")]}
    )
    assert cluster.avoided == [[], [], ["a"]]
    assert cluster.sent[2] == some
    assert len(publisher.pairs) == 1


def test_tries_are_a_budget_and_the_last_reason_is_kept(drive, folder, measured):
    tries = [broken("union test failed"), broken("out of memory", "b")]
    cluster, publisher = drive({"1/2": tries, "2/2": [whole(measured["2/2"])]}, tries=2)
    outcome = folder.outcomes()[NAME]
    assert outcome.state == "failed"
    assert outcome.why == "out of memory on host-b; tried 2 times"
    assert not publisher.pairs
    assert len(cluster.sent) == 3


def test_a_sweep_that_its_budget_ended_is_not_published(drive, folder, measured):
    """A table of a sweep that is not done would be one of another plan."""
    files = {k: v for k, v in measured["1/2"].items() if "00001" in k or "sweep" in k}
    drive({"1/2": [whole(files)], "2/2": [whole(measured["2/2"])]}, tries=1)
    assert folder.outcomes()[NAME].why.startswith("not done in 240 device-minutes")


def test_device_minutes_are_those_of_all_tries(drive, folder, measured):
    scripts = {"1/2": [broken("it fell"), whole(measured["1/2"])]}
    cluster, _ = drive({**scripts, "2/2": [whole(measured["2/2"])]}, device_minutes=1.0)
    assert cluster.minutes[:2] == [1.0, 1.0]
    assert 0.9 < cluster.minutes[2] < 1.0


def test_a_node_that_says_nothing_is_lost(drive, folder, plan, measured):
    """Its task is ended, and the shard tried again."""
    folder.keep(plan.pairs[0].jobs[1], measured["2/2"])
    cluster, publisher = drive(
        {"1/2": [[at("a")], whole(measured["1/2"], "b")]}, node_silence_minutes=0.03
    )
    assert cluster.stopped == ["1/2"]
    assert cluster.avoided == [[], ["a"]]
    assert len(publisher.pairs) == 1


def test_what_no_node_offers_is_waited_for_and_then_failed(drive, folder):
    cluster, _ = drive({}, nodes=(), wait_minutes=0.0)
    assert cluster.stopped == ["1/2", "2/2"]
    assert "no node offers what it asks for; nodes offer CPU 2" in (
        folder.outcomes()[NAME].why
    )


def test_a_shard_may_wait_for_a_busy_node_for_ever(drive, measured):
    """Others may be before it in the queue of a node that could run it."""
    late = [None] * 20 + whole(measured["1/2"])
    _, publisher = drive(
        {"1/2": [late], "2/2": [whole(measured["2/2"])]}, wait_minutes=0.0
    )
    assert len(publisher.pairs) == 1


def test_whole_shards_are_not_measured_again(drive, folder, plan, measured):
    """Whoever measured them."""
    for job in plan.pairs[0].jobs:
        folder.keep(job, measured[job.shard])
    cluster, publisher = drive({})
    assert not cluster.sent
    assert len(publisher.pairs) == 1


def test_ctrl_c_ends_the_loop_and_decides_nothing(drive, folder):
    drive({"1/2": [[at("a")]]}, deadline=Deadline(interrupted=True))
    assert folder.outcomes() == {}


def test_a_full_disk_of_the_driver_ends_it(drive, folder, plan, measured):
    """In one sentence: what was stored before is kept."""
    home = folder.store(plan.pairs[0].jobs[0]).folder
    home.parent.mkdir(parents=True, exist_ok=True)
    home.write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot be created"):
        drive({"1/2": [whole(measured["1/2"])]})

"""A fleet's folder: the plan stays, samples decide, and nothing leads out of it."""

import json
import shlex
from collections.abc import Mapping
from contextlib import chdir

import pytest

from evict_profile.errors import StoreError
from evict_profile.fleet.folder import FleetFolder, Outcome
from evict_profile.fleet.plan import make_plan
from tests.command import evict

Measured = Mapping[str, Mapping[str, bytes]]


def test_the_same_plan_is_taken_up(folder, plan):
    before = folder.header_path.read_bytes()
    folder.freeze(plan)
    assert folder.header_path.read_bytes() == before
    assert folder.plan() == plan


def test_another_plan_is_refused_and_says_what_changed(folder, fleet_of):
    other = make_plan(fleet_of(shards=3))
    with pytest.raises(StoreError, match=r"shards: 3 here, 2 there\).*choose another"):
        folder.freeze(other)
    many = make_plan(fleet_of(shards=2, dtypes=["float32"]))
    with pytest.raises(StoreError, match=r"and \d+ more"):
        folder.freeze(many)


def test_an_edited_plan_is_refused(folder):
    content = json.loads(folder.header_path.read_text())
    content["pairs"][0]["shards"] = 1
    folder.header_path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"was edited \(its sha256 differs\)"):
        folder.plan()


def test_a_folder_without_a_fleet_says_how_to_begin(tmp_path):
    with pytest.raises(StoreError, match=r"evict-profile fleet FLEET\.yaml"):
        FleetFolder(tmp_path / "none").plan()


def test_what_a_task_sent_is_what_the_next_one_gets(folder, plan, measured):
    job = plan.pairs[0].jobs[0]
    assert folder.files(job) == {}
    folder.keep(job, measured["1/2"])
    assert folder.files(job) == measured["1/2"]


def test_nothing_is_kept_outside_of_the_run(folder, plan):
    with pytest.raises(StoreError, match="not of its run"):
        folder.keep(plan.pairs[0].jobs[0], {"../../outcomes.json": b"{}"})


def test_samples_say_whether_a_shard_is_done(folder, plan, measured):
    """One part less, and it is not."""
    job = plan.pairs[0].jobs[0]
    assert not folder.finished(job)
    folder.keep(job, measured["1/2"])
    assert folder.finished(job)
    last = max(folder.store(job).parts.glob("*.parquet"))
    last.unlink()
    assert not folder.finished(job)


@pytest.mark.slow
def test_a_printed_command_measures_a_shard_without_ray(folder, plan, tmp_path):
    """As an array job of Slurm runs it; the fleet takes what it finds."""
    with chdir(tmp_path):
        lines = (folder.folder / "commands.txt").read_text().splitlines()
        program, *words = shlex.split(lines[1])
    assert program == "evict-profile"
    done = evict(*words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert [folder.finished(job) for job in plan.pairs[0].jobs] == [False, True]


def test_outcomes_are_kept(folder, plan, tmp_path):
    """And a table that was deleted is published again."""
    [pair] = plan.pairs
    table = tmp_path / "table.json"
    table.touch()
    folder.end(pair, Outcome("published", table=str(table), tries=2, nodes=("a",)))
    assert folder.outcomes()[pair.name].nodes == ("a",)
    assert folder.is_published(pair)
    table.unlink()
    assert not folder.is_published(pair)

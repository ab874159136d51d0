"""`evict-profile fleet`: plans, refusals, and runs that need no Ray."""

import sys

from evict_profile.fleet import publish
from evict_profile.io import sole_writer
from tests.command import evict, refused

FLEET = ("fleet", "fleet.yaml", "--out", "fleet", "--tables", "tables")


def test_a_plan_is_frozen_and_printed_with_its_cost(fleet_of, tmp_path):
    fleet_of(models=["tiny", "tiny-qwen3"])
    done = evict(*FLEET, "--plan-only", folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert "2 pairs, about " in done.stdout
    assert "device-minutes" in done.stdout
    assert len((tmp_path / "fleet/commands.txt").read_text().splitlines()) == 2
    again = evict("fleet", "--plan-only", *FLEET[1:], folder=tmp_path)
    assert again.stdout == done.stdout


def test_a_changed_fleet_is_refused(fleet_of, tmp_path):
    fleet_of()
    assert evict(*FLEET, "--plan-only", folder=tmp_path).exit_code == 0
    fleet_of(shards=2)
    assert "shards: 2 here, 1 there" in refused(*FLEET, folder=tmp_path)


def test_two_drivers_do_not_share_a_fleet(fleet_of, tmp_path):
    fleet_of()
    (tmp_path / "fleet").mkdir()
    with sole_writer(tmp_path / "fleet"):
        assert "another process is writing into it" in refused(*FLEET, folder=tmp_path)


def test_without_ray_it_says_what_to_install(fleet_of, tmp_path, monkeypatch):
    fleet_of()
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 'pip install "evict-profile[fleet]"' in refused(*FLEET, folder=tmp_path)


def test_shards_that_others_measured_are_published_without_ray(
    folder, plan, measured, tmp_path, monkeypatch
):
    """And the status says so."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(publish, "write_report", lambda *_: None)
    for job in plan.pairs[0].jobs:
        folder.keep(job, measured[job.shard])
    begun = evict("fleet", "status", "fleet", folder=tmp_path)
    assert "1 pairs: 1 begun" in begun.stdout
    done = evict(*FLEET, folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert "1 pairs: 1 published" in done.stdout
    assert "atlas: fleet/atlas.html" in done.stdout
    assert (tmp_path / "fleet/atlas.html").is_file()
    assert len(list((tmp_path / "tables").rglob("*.json"))) == 1


def test_a_tree_without_tables_has_nothing_to_watch(tmp_path):
    assert "holds no measured table" in refused("fleet", "watch", ".", folder=tmp_path)

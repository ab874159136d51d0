"""Complete pairs become tables through their gates, once."""

from collections.abc import Mapping

import pyarrow.parquet as pq
import pytest

from evict_profile.errors import GateError
from evict_profile.fleet import publish as publish_module
from evict_profile.fleet.folder import Outcome
from evict_profile.fleet.publish import Publisher, publish
from evict_profile.report.fleet import fleet_page
from evict_profile.table import CostTable

Measured = Mapping[str, Mapping[str, bytes]]


@pytest.fixture
def whole(folder, plan, measured):
    """A fleet whose shards are all here."""
    for job in plan.pairs[0].jobs:
        folder.keep(job, measured[job.shard])
    return folder


@pytest.fixture(autouse=True)
def short_reports(monkeypatch):
    """Drawing a report takes seconds, and has tests of its own."""

    def write(fitted, table, path):
        path.write_text(f"{len(fitted.frame)} samples of {table.key.model}")

    monkeypatch.setattr(publish_module, "write_report", write)


def slow_down(folder, plan, factor):
    """As if the second shard had been measured on a slower machine."""
    for path in folder.store(plan.pairs[0].jobs[1]).parts.glob("*.parquet"):
        rows = pq.read_table(path).to_pandas()
        rows["clock_us"] *= factor
        rows.to_parquet(path, index=False)


def test_shards_become_one_table_and_the_atlas_shows_it(whole, plan, tmp_path):
    """Published again after a driver's end, it is the same table; JSON that is no
    table is passed over."""
    [pair] = plan.pairs
    tables = tmp_path / "tables"
    notes = tables / "a/b/c/notes.json"
    notes.parent.mkdir(parents=True)
    notes.write_text("{}")
    path = publish(whole, pair, tables)
    assert CostTable.load(path).model == pair.model
    assert publish(whole, pair, tables) == path
    assert set(tables.rglob("*.json")) == {path, notes}
    whole.end(pair, Outcome("published", table=str(path), tries=3, nodes=("a", "b")))
    page = fleet_page(whole, plan)
    assert "1 of 1 pairs are published" in page
    assert f'<a href="pairs/{pair.name}/report.html">tiny</a>' in page
    assert "an expert implies" in page
    assert "over the run" in page
    report = (whole.pair(pair) / "report.html").read_text()
    assert report.endswith("samples of tiny")


def test_unequal_machines_are_not_merged(whole, plan, tmp_path):
    slow_down(whole, plan, 1.2)
    with pytest.raises(GateError, match=r"not of equal machines: 2/2 against 1/2 \+\d"):
        publish(whole, plan.pairs[0], tmp_path)
    assert not (whole.pair(plan.pairs[0]) / "merged").exists()


def test_what_a_gate_refuses_is_kept_with_its_reason(whole, plan, tmp_path):
    slow_down(whole, plan, 1.2)
    [pair] = plan.pairs
    with Publisher(whole, tmp_path / "tables") as publisher:
        publisher.publish(pair, Outcome("failed", tries=2))
    [(ended, outcome)] = publisher.ended()
    assert ended == pair
    assert (outcome.state, outcome.tries) == ("refused", 2)
    whole.end(pair, outcome)
    page = fleet_page(whole, plan)
    assert "0 of 1 pairs are published" in page
    assert "shards are not of equal machines" in page

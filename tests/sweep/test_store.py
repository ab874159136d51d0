"""Samples on disk are whole or absent, and never mixed with foreign ones."""

import shutil

import pandas as pd
import pytest

from evict_profile.cells import (
    OK,
    UNTIMED,
    Sample,
    failed_cells,
    measured,
    to_frame,
    with_latency,
)
from evict_profile.errors import ConfigError, DataError
from evict_profile.records import replace, to_mapping
from evict_profile.sweep.store import Store
from tests.sweep.conftest import round_of


@pytest.fixture
def store(store, header):
    store.create(header)
    return store


def test_header_round_trip(store, header):
    assert store.exists()
    assert store.header() == header
    assert store.header().plan_sha256 == header.plan_sha256


def test_samples_round_trip(store, grid):
    rounds = [round_of(grid, 1), round_of(grid, 2)]
    for samples in reversed(rounds):
        store.append(samples)
    expected = to_frame([*rounds[0], *rounds[1]])
    pd.testing.assert_frame_equal(store.frame(), expected)


def test_the_rest_of_a_round_joins_its_beginning(store, grid):
    """As parts of their own; none is overwritten, though one is renamed or deleted."""
    samples = round_of(grid, 1)
    store.append(samples[:3])
    store.append(samples[3:6])
    store.part("00001-01").rename(store.part("00001-old"))
    store.part("00001-00").unlink()
    store.append(samples[:3])
    assert store.frame()["order"].tolist() == list(range(6))


def test_a_copied_part_is_refused(store, grid):
    store.append(round_of(grid, 1))
    store.append(round_of(grid, 2))
    shutil.copy(store.part("00002-00"), store.part("00002-01"))
    count = len(grid.cells)
    with pytest.raises(DataError, match=f"{count} samples twice, first .* in round 2"):
        store.frame()


def test_samples_without_a_session_are_refused(store, grid):
    frame = to_frame(round_of(grid, 1))
    store.add(frame.assign(session=[None, *frame["session"][1:]]), 1, 0)
    with pytest.raises(DataError, match="samples lack session; put whole copies"):
        store.frame()


def test_no_sweep_here(tmp_path):
    """An empty folder, with the command that makes a run; and a file."""
    with pytest.raises(DataError, match=r"holds no sweep; run 'evict-profile sweep"):
        Store(tmp_path / "none").header()
    path = tmp_path / "samples.csv"
    path.write_text("width,latency_us\n")
    with pytest.raises(DataError, match="is a file; give the run folder"):
        Store(path).header()


def test_a_damaged_header_is_named(store):
    store.header_path.write_text('{"model": 1}')
    with pytest.raises(ConfigError, match=r"sweep\.json: .*model"):
        store.header()


def test_same_plan_and_fingerprint_go_on(store, header):
    later = replace(header, started_unix=9.0, union_test={"differ": False})
    store.check_same_sweep(later)
    assert store.header() == header


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"fingerprint": {"device": "stone", "layers": 2}},
            "device: stone here, paper there",
        ),
        ({"sweep": {"seed": 99}}, "edited since"),
        ({"sweep": {"name": "longer"}}, "sweep: longer here, scripted there"),
    ],
)
def test_another_run_is_refused_by_what_differs(store, header, changes, reason):
    """Fingerprint, or the plan: by its name, or edited under the same name."""
    if "sweep" in changes:
        changes = {"sweep": replace(header.sweep, **changes["sweep"])}
    message = rf"\([^;]*{reason}.*\); choose another --out"
    with pytest.raises(DataError, match=message) as caught:
        store.check_same_sweep(replace(header, **changes))
    assert "layers" not in str(caught.value)


@pytest.mark.parametrize(
    ("shard", "whole"), [("1/1", True), (None, True), ("1/2", False)]
)
def test_a_whole_run_of_an_earlier_version_is_read(store, header, shard, whole):
    store.write_header({**to_mapping(header), "shard": shard})
    if whole:
        assert store.header() == header
        return
    with pytest.raises(DataError, match=r"holds shard 1/2 of a plan.*sweep anew"):
        store.header()


def test_options_that_an_earlier_version_saved_apart_are_read(store, header):
    """So its run goes on: its plan is the same."""
    saved = to_mapping(header)
    del saved["sweep"]["engine"]
    saved["sweep"] |= {"gpu": "h200-sxm", "sglang": {"topk": 8}, "options": {}}
    store.write_header(saved)
    store.check_same_sweep(header)


def test_cells_keep_the_order_and_what_a_failed_cell_had(store, grid):
    """Latencies in the order measured; a later failure takes none of them away."""
    good, bad = grid.cells[:2]
    for number, clock in ((1, 30.0), (2, 10.0), (3, 20.0)):
        kept = Sample(good, number, 0, number, replace(UNTIMED, clock_us=clock))
        status = "oom" if number == 3 else OK
        store.append([kept, replace(kept, cell=bad, order=1, status=status)])
    seen = measured(with_latency(store.frame()))["samples_us"]
    assert seen.to_dict() == {good: [30.0, 10.0, 20.0], bad: [30.0, 10.0]}
    assert failed_cells(store.frame()) == {bad}

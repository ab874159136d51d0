"""Shards of one plan become one run, and those of different plans are refused."""

import errno
import shutil

import pandas as pd
import pyarrow.parquet as pq
import pytest

from evict_profile.cells import cells_of
from evict_profile.config import GridSpec, SweepSpec
from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.sweep.merge import merge
from evict_profile.sweep.store import Store
from evict_profile.table import DraftClock
from tests.sweep.conftest import round_of
from tests.test_run_folder import failing_write

OTHER_DEVICE = {"device": "stone", "layers": 2}


def shards_of(tmp_path, header, grid, count, name="shard"):
    """Two rounds of every shard, and its clock of one batch."""
    stores = []
    for index in range(count):
        own = grid.shard(index, count)
        stores.append(Store(tmp_path / f"{name}{index}"))
        stores[-1].create(replace(header, shard=f"{index + 1}/{count}"))
        stores[-1].add_clock(DraftClock(2 - index % 2, (0.0, 9.0), 5.0, 1.0))
        for number in (1, 2):
            stores[-1].append(round_of(own, number))
    return stores


def test_merged_shards_are_the_whole(tmp_path, header, grid, monkeypatch):
    """As one run; samples without a session take their shard's name.

    A disk that fills while merging leaves nothing that looks whole, and what is whole
    is not merged into again.
    """
    shards, whole = shards_of(tmp_path, header, grid, 3), Store(tmp_path / "whole")
    with monkeypatch.context() as full:
        full.setattr(pq, "write_table", failing_write(errno.ENOSPC))
        with pytest.raises(DataError, match="free some space"):
            merge(shards, whole)
    assert not whole.exists()
    merge(shards, whole)
    assert whole.header() == header
    by = ["round", "seed", "part", "width", "union", "context", "batch", "split"]
    frames = [s.frame().assign(session=s.header().shard) for s in shards]
    given = pd.concat(frames).sort_values(by, ignore_index=True)
    merged = whole.frame().sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(merged, given)
    assert set(cells_of(merged)) == set(grid.cells)
    assert [clock.batch for clock in whole.clocks()] == [1, 2]
    with pytest.raises(DataError, match="holds a sweep already"):
        merge(shards, whole)


def test_merge_refuses_what_another_merge_left(tmp_path, header, grid):
    """Cut off before its last line; and a folder that another process writes into."""
    shards, target = shards_of(tmp_path, header, grid, 2), Store(tmp_path / "whole")
    target.append(round_of(grid, 1))
    with pytest.raises(DataError, match=r"samples but no sweep\.json"):
        merge(shards, target)
    shutil.rmtree(target.parts)
    with target.locked(), pytest.raises(DataError, match="another process"):
        merge(shards, target)
    merge(shards, target)
    assert target.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": OTHER_DEVICE}, "device: stone here"),
        ({"sweep": SweepSpec("scripted", GridSpec((8,), 4, (64,)))}, "edited since"),
    ],
)
def test_merge_refuses_a_foreign_run(tmp_path, header, grid, changes, reason):
    shards = shards_of(tmp_path, header, grid, 2)
    shards += shards_of(tmp_path, replace(header, **changes), grid, 3, "foreign")[2:]
    target = Store(tmp_path / "whole")
    with pytest.raises(DataError, match=rf"foreign2.*{reason}"):
        merge(shards, target)
    assert not target.folder.exists()


def test_merge_refuses_one_shard_twice(tmp_path, header, grid):
    one, two = shards_of(tmp_path, header, grid, 2)
    with pytest.raises(DataError, match="give each shard of the plan once"):
        merge([one, two, one], Store(tmp_path / "whole"))


def test_merge_refuses_a_shard_without_samples(tmp_path, header, grid):
    one, two = shards_of(tmp_path, header, grid, 2)
    shutil.rmtree(two.folder / "parts")
    target = Store(tmp_path / "whole")
    with pytest.raises(DataError, match="holds no sample; run its sweep again"):
        merge([one, two], target)
    assert not target.folder.exists()

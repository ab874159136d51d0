"""Shards of one plan become one run, and those of different plans are refused."""

import shutil

import pandas as pd
import pytest

from evict_profile.cells import cells_of
from evict_profile.config import GridSpec, SweepSpec
from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.sweep.merge import merged
from evict_profile.sweep.store import Store
from evict_profile.table import DraftClock
from tests.sweep.conftest import round_of

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


def test_merged_shards_are_the_whole(tmp_path, header, grid):
    """As one run; samples without a session take their shard's name."""
    shards = shards_of(tmp_path, header, grid, 3)
    whole = merged(shards)
    assert (whole.folder, whole.header) == (shards[0].folder, header)
    by = ["round", "seed", "part", "width", "union", "context", "batch", "split"]
    frames = [s.frame().assign(session=s.header().shard) for s in shards]
    given = pd.concat(frames).sort_values(by, ignore_index=True)
    own = whole.frame.sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(own, given)
    assert list(whole.frame["round"]) == sorted(whole.frame["round"])
    assert set(cells_of(own)) == set(grid.cells)
    assert [clock.batch for clock in whole.clocks] == [1, 2]


def test_one_run_is_itself(tmp_path, header, grid):
    [store] = shards_of(tmp_path, header, grid, 1)
    run = merged([store])
    assert (run.header, run.clocks) == (store.header(), store.clocks())
    pd.testing.assert_frame_equal(run.frame, store.frame())


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
    with pytest.raises(DataError, match=rf"foreign2.*{reason}"):
        merged(shards)


def test_merge_refuses_one_shard_twice(tmp_path, header, grid):
    one, two = shards_of(tmp_path, header, grid, 2)
    with pytest.raises(DataError, match="give each shard once"):
        merged([one, two, one])


def test_merge_refuses_a_shard_without_a_number(tmp_path, header, grid):
    shards = shards_of(tmp_path, header, grid, 2)
    for shard in shards:
        shard.create(replace(header, shard="one"))
    with pytest.raises(DataError, match=r"shards one, one of .*give each shard once"):
        merged(shards)


def test_merge_refuses_a_shard_without_samples(tmp_path, header, grid):
    one, two = shards_of(tmp_path, header, grid, 2)
    shutil.rmtree(two.folder / "parts")
    with pytest.raises(DataError, match="holds no sample; run its sweep again"):
        merged([one, two])

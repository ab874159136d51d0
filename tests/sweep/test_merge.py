"""Shards are merged where machines are equal, and noise alone refuses few of them."""

import errno
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from evict_profile.cells import Sample, to_frame
from evict_profile.config import GridSpec, SweepSpec, load_model
from evict_profile.errors import GateError, StoreError
from evict_profile.records import replace
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.latency import SESSIONS_SD
from evict_profile.sweep.merge import check_equal, differences_between, merge
from evict_profile.sweep.store import Store, history
from evict_profile.table import DraftClock
from tests.factories import SWEEP
from tests.sweep.conftest import round_of
from tests.test_run_folder import failing_write

MODEL = load_model("tiny")
ANCHOR = make_grid(SWEEP, MODEL).anchor
ROUNDS, DRAWS = 12, 40
OTHER_DEVICE = {"device": "stone", "layers": 2}


def shard(name, rng, slower=0.0, noise=0.02, sessions=2, reference=False):
    """A store of anchor samples; each session is off by about a percent."""
    level = 1.0 + SESSIONS_SD * rng.standard_normal(sessions)
    samples = []
    for number in range(ROUNDS):
        session = number * sessions // ROUNDS
        us = 1e3 * (1.0 + slower) * level[session] * (1 + noise * rng.standard_normal())
        # A machine that is slower as a whole: its reference work is too.
        paired_us = 500.0 * (1.0 + slower) if reference else float("nan")
        own = {"clock_us": us, "reference_us": paired_us}
        named = {"seed": number, "session": f"{name} #{session}"}
        samples.append(Sample(ANCHOR, number + 1, 0, **named, **own))
    header = SimpleNamespace(sweep=SWEEP, model=MODEL, shard=name)
    frame = to_frame(samples)
    return SimpleNamespace(header=lambda: header, frame=lambda: frame)


def pair_of(rng, **second):
    return [shard("1/2", rng), shard("2/2", rng, **second)]  # type: ignore[arg-type]


def test_equal_machines_are_rarely_refused():
    """By noise of the anchor and what sets sessions apart."""
    rng = np.random.default_rng(1)
    refused = sum(
        not found.equal
        for _ in range(DRAWS)
        for found in differences_between(pair_of(rng))  # type: ignore[arg-type]
    )
    assert refused <= 3


@pytest.mark.parametrize("slower", [0.08, -0.08])
def test_a_machine_beyond_the_floor_is_refused_and_measured(slower):
    stores = pair_of(np.random.default_rng(2), slower=slower)
    with pytest.raises(GateError, match=r"2/2 against 1/2 [+-]\d.\d% at the anchor"):
        check_equal(stores)  # type: ignore[arg-type]
    [found] = differences_between(stores)  # type: ignore[arg-type]
    assert found.size == pytest.approx(slower, abs=0.03)


def test_more_sessions_tell_more():
    rng = np.random.default_rng(3)
    few, many = (
        differences_between(
            [shard("1/2", rng, sessions=n), shard("2/2", rng, sessions=n)]
        )  # type: ignore[list-item]
        for n in (1, 6)
    )
    assert many[0].floor < few[0].floor


def test_ratios_to_a_reference_work_are_what_is_compared():
    """As in the run that is merged: a slower clock of all work is no difference."""
    rng = np.random.default_rng(4)
    stores = [
        shard("1/2", rng, reference=True),
        shard("2/2", rng, slower=0.5, reference=True),
    ]
    assert all(found.equal for found in differences_between(stores))  # type: ignore[arg-type]


def test_three_shards_are_compared_two_by_two():
    rng = np.random.default_rng(5)
    stores = [shard(f"{i}/3", rng) for i in (1, 2, 3)]
    found = differences_between(stores)  # type: ignore[arg-type]
    assert [each.names for each in found] == [
        ("1/3", "2/3"),
        ("1/3", "3/3"),
        ("2/3", "3/3"),
    ]


def test_a_shard_without_its_anchor_is_refused():
    one, other = pair_of(np.random.default_rng(6))
    none = SimpleNamespace(header=other.header, frame=lambda: other.frame().iloc[:0])
    with pytest.raises(GateError, match="shards 2/2 never measured the anchor"):
        check_equal([one, none])  # type: ignore[list-item]


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
        with pytest.raises(StoreError, match="free some space"):
            merge(shards, whole)
    assert not whole.exists()
    merge(shards, whole)
    assert whole.header() == header
    by = ["round", "seed", "part", "width", "union", "context", "batch", "split"]
    frames = [s.frame().assign(session=s.header().shard) for s in shards]
    given = pd.concat(frames).sort_values(by, ignore_index=True)
    merged = whole.frame().sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(merged, given)
    assert set(history(merged)) == set(grid.cells)
    assert [clock.batch for clock in whole.clocks()] == [1, 2]
    with pytest.raises(StoreError, match="holds a sweep already"):
        merge(shards, whole)


def test_merge_refuses_what_another_merge_left(tmp_path, header, grid):
    """Cut off before its last line; and a folder that another process writes into."""
    shards, target = shards_of(tmp_path, header, grid, 2), Store(tmp_path / "whole")
    target.append(round_of(grid, 1))
    with pytest.raises(StoreError, match=r"samples but no sweep\.json"):
        merge(shards, target)
    shutil.rmtree(target.parts)
    with target.locked(), pytest.raises(StoreError, match="another process"):
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
    with pytest.raises(StoreError, match=rf"foreign2.*{reason}"):
        merge(shards, target)
    assert not target.folder.exists()


def test_merge_refuses_one_shard_twice(tmp_path, header, grid):
    one, two = shards_of(tmp_path, header, grid, 2)
    with pytest.raises(StoreError, match="give each shard of the plan once"):
        merge([one, two, one], Store(tmp_path / "whole"))


def test_merge_refuses_a_shard_without_samples(tmp_path, header, grid):
    one, two = shards_of(tmp_path, header, grid, 2)
    shutil.rmtree(two.folder / "parts")
    target = Store(tmp_path / "whole")
    with pytest.raises(StoreError, match="holds no sample; run its sweep again"):
        merge([one, two], target)
    assert not target.folder.exists()


def test_merge_refuses_shards_of_unequal_machines(tmp_path, header, grid):
    """With the numbers and what to do; nothing is written."""
    one, two = shards_of(tmp_path, header, grid, 2)
    for part in two.parts.glob("*.parquet"):
        rows = pd.read_parquet(part)
        rows.assign(clock_us=1.2 * rows["clock_us"]).to_parquet(part, index=False)
    target = Store(tmp_path / "whole")
    said = r"2/2 against 1/2 \+2\d\.\d% at the anchor.*the whole sweep on one"
    with pytest.raises(GateError, match=said):
        merge([one, two], target)
    assert not target.folder.exists()

"""Shards are merged where machines are equal, and noise alone refuses few of them."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from evict_profile.cells import Sample, to_frame
from evict_profile.config import load_model
from evict_profile.errors import GateError
from evict_profile.fleet.equal import check_equal, differences_between
from evict_profile.sweep.change import BETWEEN
from evict_profile.sweep.grid import make_grid
from tests.factories import SWEEP

MODEL = load_model("tiny")
ANCHOR = make_grid(SWEEP, MODEL).anchor
ROUNDS, DRAWS = 12, 40


def shard(
    name: str,
    rng: np.random.Generator,
    slower: float = 0.0,
    noise: float = 0.02,
    openings: int = 2,
    reference: bool = False,
) -> SimpleNamespace:
    """A store of anchor samples; each opening is off by about a percent."""
    level = 1.0 + BETWEEN * rng.standard_normal(openings)
    samples = []
    for number in range(ROUNDS):
        opening = number * openings // ROUNDS
        us = 1e3 * (1.0 + slower) * level[opening] * (1 + noise * rng.standard_normal())
        # A machine that is slower as a whole: its reference work is too.
        paired_us = 500.0 * (1.0 + slower) if reference else float("nan")
        own = {"clock_us": us, "reference_us": paired_us}
        named = {"seed": number, "session": f"{name} #{opening}"}
        samples.append(Sample(ANCHOR, number + 1, 0, **named, **own))
    header = SimpleNamespace(sweep=SWEEP, model=MODEL, shard=name)
    frame = to_frame(samples)
    return SimpleNamespace(header=lambda: header, frame=lambda: frame)


def pair_of(rng: np.random.Generator, **second: object) -> Sequence[SimpleNamespace]:
    """Two shards of one sweep."""
    return [shard("1/2", rng), shard("2/2", rng, **second)]  # type: ignore[arg-type]


def test_equal_machines_are_rarely_refused() -> None:
    """By noise of the anchor and what sets openings apart."""
    rng = np.random.default_rng(1)
    refused = sum(
        not found.equal
        for _ in range(DRAWS)
        for found in differences_between(pair_of(rng))  # type: ignore[arg-type]
    )
    assert refused <= 3


@pytest.mark.parametrize("slower", [0.08, -0.08])
def test_a_machine_beyond_the_floor_is_refused_and_measured(slower: float) -> None:
    stores = pair_of(np.random.default_rng(2), slower=slower)
    with pytest.raises(GateError, match=r"2/2 against 1/2 [+-]\d.\d% at the anchor"):
        check_equal(stores)  # type: ignore[arg-type]
    [found] = differences_between(stores)  # type: ignore[arg-type]
    assert found.size == pytest.approx(slower, abs=0.03)


def test_more_openings_tell_more() -> None:
    rng = np.random.default_rng(3)
    few, many = (
        differences_between(
            [shard("1/2", rng, openings=n), shard("2/2", rng, openings=n)]
        )  # type: ignore[list-item]
        for n in (1, 6)
    )
    assert many[0].floor < few[0].floor


def test_ratios_to_a_reference_work_are_what_is_compared() -> None:
    """As in the run that is merged: a slower clock of all work is no difference."""
    rng = np.random.default_rng(4)
    stores = [
        shard("1/2", rng, reference=True),
        shard("2/2", rng, slower=0.5, reference=True),
    ]
    assert all(found.equal for found in check_equal(stores))  # type: ignore[arg-type]


def test_three_shards_are_compared_two_by_two() -> None:
    rng = np.random.default_rng(5)
    stores = [shard(f"{i}/3", rng) for i in (1, 2, 3)]
    found = differences_between(stores)  # type: ignore[arg-type]
    assert [each.names for each in found] == [
        ("1/3", "2/3"),
        ("1/3", "3/3"),
        ("2/3", "3/3"),
    ]


def test_a_shard_without_its_anchor_is_refused() -> None:
    one, other = pair_of(np.random.default_rng(6))
    none = SimpleNamespace(header=other.header, frame=lambda: other.frame().iloc[:0])
    with pytest.raises(GateError, match="shards 2/2 never measured the anchor"):
        check_equal([one, none])  # type: ignore[list-item]

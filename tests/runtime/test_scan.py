"""The compiled loops say what those in numpy do, to the last digit, and never more."""

import random
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.runtime import ConditionalAcceptance, scan, scan_numpy
from evict_profile.runtime.conditional import ConditionalScorer
from tests.runtime.forests import SHARES

pytestmark = pytest.mark.skipif(not scan.COMPILED, reason="no C compiler was at hand")

NAMES = ("reach", "expect", "best_size", "cut", "follow")
GUARD = 7.0
"""Stands on both sides of what is written, and stays."""


class Draw:
    """Arguments of the five functions; half of the draws have many ties."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self._ties = bool(self._rng.integers(2))
        self.batch, self.nodes = map(int, self._rng.integers((1, 0), (5, 40)))

    def arguments(self, name):
        """Those of one function."""
        return {
            "reach": self.reach,
            "expect": self.expect,
            "best_size": self.best_size,
            "cut": self.cut,
            "follow": self.follow,
        }[name]()

    def reach(self):
        above, level, families, children = map(
            int, self._rng.integers((0, 1, 0, 0), (4, 9, 4, 4))
        )
        prob = np.sort(self._worth(self.batch, families, children))[..., ::-1]
        parent = self._rng.integers(0, level, (self.batch, families))
        begin, prob = above + level, np.ascontiguousarray(prob)
        trees = self._worth(self.batch, begin + families * children + 3)
        own = parent if self._rng.integers(4) else None
        return trees, above, begin, prob, own, self._curves()

    def expect(self):
        begin, ranks = int(self._rng.integers(self.nodes + 1)), self._rng.integers(4)
        expected = self.nodes + min(self.nodes - begin, ranks) * ranks
        trees = self._worth(self.batch, self.nodes + 2)
        out = np.full((2, self.batch, expected), GUARD)
        return trees, begin, self.nodes, self._worth(ranks), out

    def best_size(self):
        best = np.sort(self._worth(2, self.batch, self.nodes))
        costs = 1.0 + self._worth(int(self._rng.integers(1, self.nodes + 4)))
        rate = [None, 0.0, 0.5][int(self._rng.integers(3))]
        return self._as_either(best), costs, 1.5, self._worth(2), rate

    def cut(self):
        keep = np.ones((self.batch, self.nodes), np.bool_)
        pooled = (1, keep.size) if self._rng.integers(2) else keep.shape
        ranked, ties = (self._as_either(self._worth(*keep.shape)) for _ in range(2))
        if keep.size and not self._rng.integers(8):
            ranked.flat[self._rng.integers(keep.size)] = [-0.1, np.nan, 1.1][
                int(self._rng.integers(3))
            ]
        own = ties if self._rng.integers(2) else None
        _, costs, start, us, rate = self.best_size()
        widths = np.ones(self.batch, np.int64)
        wanted = costs, start, float(us[0]), rate
        best = np.sort(ranked.reshape(pooled))
        return ranked, best, own, *wanted, keep, widths

    def follow(self):
        shape = self.batch, self.nodes
        parent = self._rng.integers(-2, self.nodes + 2, shape)
        path_prob = self._as_either(self._worth(*shape))
        return path_prob, parent, self._curves(), np.full(shape, GUARD)

    def _worth(self, *shape):
        if self._ties:
            return self._rng.choice(SHARES, shape)
        return self._rng.random(shape)

    def _as_either(self, values):
        return values.astype([np.float32, np.float64][int(self._rng.integers(2))])

    def _curves(self):
        ranks, between = map(int, self._rng.integers((1, 0), (4, 6)))
        scores = np.unique([0.0, *self._rng.random(between), 1.0])
        rows = np.sort(self._worth(ranks, len(scores)))
        rows[:, 0] = 0.0
        curves = ConditionalAcceptance(
            tuple(scores.tolist()), tuple(map(tuple, rows.tolist()))
        )
        return ConditionalScorer(curves).curves


def plain(name):
    return getattr(scan_numpy, name)


def compiled(name):
    return getattr(scan.import_module("evict_profile.runtime._scan"), name)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(0, 2**32))
def test_both_give_the_same_numbers(name, seed):
    """What is answered and what is written, bit for bit."""
    one = Draw(seed).arguments(name)
    other = deepcopy(one)
    assert compiled(name)(*one) == plain(name)(*other)
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("bad", [np.nan, -0.1, -1.5, 1.1, np.inf])
def test_both_find_what_is_no_probability(bad):
    """Wherever it stands."""
    curves = ConditionalScorer(ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0),))).curves
    for place in range(4):
        prob = np.full((2, 1, 2), 0.5)
        prob.flat[place] = bad
        for function in (plain("reach"), compiled("reach")):
            assert function(np.empty((2, 4)), 0, 0, prob, None, curves) is False


@pytest.mark.parametrize("wrong", [-1, 3, 2**62, -(2**62)])
def test_both_refuse_parents_outside_their_level(wrong):
    """They would be read elsewhere."""
    trees, prob = np.ones((1, 9)), np.full((1, 2, 2), 0.5)
    curves = ConditionalScorer(ConditionalAcceptance((0.0, 1.0), ((0.0, 1.0),))).curves
    for function in (plain("reach"), compiled("reach")):
        with pytest.raises(IndexError, match="outside the level before"):
            function(trees, 1, 4, prob, np.array([[0, wrong]]), curves)


ODD: tuple[Any, ...] = (
    None,
    "text",
    -1,
    2**70,
    10**6,
    np.nan,
    b"bytes",
    np.zeros((3, 3), np.float16),
    np.zeros((2, 3), np.int32),
    np.zeros((2, 3), ">f8"),
    np.zeros((2, 3), complex),
    np.zeros((2, 3), object),
    np.zeros((2, 3), "f8,f4"),
    np.zeros((6, 6))[::2, ::2],
    np.zeros((0, 3)),
    np.zeros((3, 0)),
    np.zeros(()),
    np.zeros((1, 1, 1, 1)),
    np.full((2, 3, 2), 0.5),
    np.full((1, 1), np.nan),
    np.array([[7, -7]]),
)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_is_given_reaches_beyond_it(name):
    """Odd arguments in the places of good ones, one or two at a time."""
    rng = random.Random(name)
    refused = 0
    for seed in range(400):
        given_to = list(Draw(seed).arguments(name))
        for _ in range(rng.randint(1, 2)):
            given_to[rng.randrange(len(given_to))] = rng.choice(ODD)
        fenced, arguments = zip(*map(fence, given_to), strict=True)
        try:
            compiled(name)(*arguments)
        except (TypeError, ValueError, IndexError, OverflowError, BufferError):
            refused += 1
        for whole in fenced:
            if whole is not None:
                assert np.all(whole[:8] == GUARD) and np.all(whole[-8:] == GUARD)
    assert refused > 200


def fence(value):
    """Floats with others on both sides of them, and all else as it is."""
    plain_floats = isinstance(value, np.ndarray) and value.dtype == np.float64
    if not (plain_floats and value.flags.c_contiguous):
        return None, value
    whole = np.full(value.size + 16, GUARD)
    inner = whole[8:-8].reshape(value.shape)
    inner[...] = value
    return whole, inner


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_only_is_not_written_to(name):
    """And another number of arguments is refused."""
    arguments = Draw(2).arguments(name)
    for value in arguments:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    if name != "best_size":
        with pytest.raises(ValueError, match="read-only"):
            compiled(name)(*arguments)
    with pytest.raises(TypeError, match=f"takes {len(arguments)} arguments"):
        compiled(name)(*arguments, None)


def test_buffers_are_released_whatever_happens():
    """What is still held could not be freed."""
    for costs in (3, 0):
        held = memoryview(bytearray(24)).cast("B").cast("d", (1, 1, 3))
        numbers = memoryview(bytearray(8 * costs)).cast("d")
        try:
            compiled("best_size")(held, numbers, 1.0, np.ones(1), None)
        except ValueError:
            assert not costs
        held.release()
        numbers.release()

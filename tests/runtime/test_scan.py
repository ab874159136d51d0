"""The compiled kernels give what those in numpy do, to the last digit."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.runtime import ConditionalAcceptance, decision, scan_numpy
from evict_profile.runtime.scoring import IDENTITY, ConditionalScorer
from tests.runtime.forests import SHARES

pytestmark = pytest.mark.skipif(
    not decision.COMPILED, reason="no C compiler was at hand"
)

NAMES = ("score_level", "level_pays", "select_nodes", "score_by_parent", "rises")
LEAVES = {"level_pays": None, "score_by_parent": False}
"""What the compiled kernels return where they leave the work to those in numpy."""
ROOM = {"level_pays": (10,), "select_nodes": (1,)}
"""Places of the arguments in which the compiled kernels sort."""


class Draw:
    """Arguments of the kernels; half of the draws have many ties."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self._ties = bool(self._rng.integers(2))
        self.batch, self.nodes = map(int, self._rng.integers((1, 0), (5, 40)))

    def score_level(self):
        above, level, families, children = map(
            int, self._rng.integers((0, 1, 0, 0), (4, 9, 4, 4))
        )
        prob = np.sort(self._worth(self.batch, families, children))[..., ::-1]
        parent = self._rng.integers(0, level, (self.batch, families))
        begin, prob = above + level, np.ascontiguousarray(prob)
        trees = self._worth(self.batch, begin + families * children + 3)
        own = parent if self._rng.integers(4) else None
        curves = self._curves()
        shape = (*trees.shape, families, children, len(curves) // 2)
        return trees, above, begin, prob, own, curves, *shape

    def level_pays(self):
        begin, ranks = map(int, self._rng.integers((0, 0), (self.nodes + 1, 4)))
        trees = self._worth(self.batch, self.nodes + 2)
        costs = self._costs(99)
        us = np.sort(self._worth(2)).tolist()
        row = self.nodes + min(self.nodes - begin, ranks) * ranks
        objective = (self._worth(ranks), costs, 1.5, *us, int(self._rng.integers(50)))
        room = np.empty(self.batch * row)
        return trees, begin, self.nodes, *objective, 1, room, *trees.shape

    def select_nodes(self):
        scores = self._worth(self.batch, self.nodes)
        pools = 1 if self._rng.integers(2) else self.batch
        if scores.size and not self._rng.integers(8):
            wrong = (-0.1, np.nan, 1.1)[int(self._rng.integers(3))]
            scores.flat[self._rng.integers(scores.size)] = wrong
        best = np.sort(scores) if pools > 1 else np.empty(scores.size)
        ties = self._worth(*scores.shape) if self._rng.integers(2) else None
        costs = self._costs(2 * self.nodes + 4)
        rate = (np.nan, 0.0, 0.5)[int(self._rng.integers(3))]
        keep, widths = np.ones(scores.shape, bool), np.ones(self.batch, np.int64)
        past = (1.5, float(self._worth(1)[0]), rate)
        return scores, best, ties, costs, *past, keep, widths, self.batch, pools

    def score_by_parent(self):
        shape = self.batch, self.nodes
        parent = self._rng.integers(-2, self.nodes + 2, shape)
        path_prob = self._worth(*shape)
        if self._rng.integers(2):  # parents and likelier siblings first
            parent = self._rng.integers(-1, np.arange(1, self.nodes + 1), shape)
            path_prob = np.sort(path_prob)[:, ::-1].copy()
        curves = self._curves()
        ranks = len(curves) // 2
        return path_prob, parent, curves, np.full(shape, 7.0), *shape, ranks

    def rises(self):
        shape = self.batch, self.nodes
        parent = self._rng.integers(-1, np.arange(self.nodes), shape)
        if parent.size and self._rng.integers(2):
            parent.flat[self._rng.integers(parent.size)] = self._rng.integers(-3, 50)
        path_prob = -np.sort(-self._worth(*shape), axis=1)
        if path_prob.size and not self._rng.integers(4):
            path_prob.flat[self._rng.integers(path_prob.size)] = 1.0
        return path_prob, parent, *shape

    def _worth(self, *shape):
        if self._ties:
            return self._rng.choice(SHARES, shape)
        return self._rng.random(shape)

    def _costs(self, most):
        """Half of them rise less and less: nodes that seemed not to pay can pay."""
        worth = self._worth(int(self._rng.integers(1, most)))
        rising = np.cumsum(-np.sort(-worth))
        return 1.0 + (rising if self._rng.integers(2) else worth)

    def _curves(self):
        ranks, between = map(int, self._rng.integers((1, 0), (4, 6)))
        scores = np.unique([0.0, *self._rng.random(between), 1.0])
        rows = np.sort(self._worth(ranks, len(scores)))
        rows[:, 0] = 0.0
        curves = ConditionalAcceptance(
            tuple(scores.tolist()), tuple(map(tuple, rows.tolist()))
        )
        return ConditionalScorer(curves).curves


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(0, 2**32))
def test_both_give_the_same_numbers(name, seed):
    one = getattr(Draw(seed), name)()
    other = deepcopy(one)
    ours = getattr(decision.kernels, name)(*one)
    if name in LEAVES and ours is LEAVES[name]:
        return
    assert ours == getattr(scan_numpy, name)(*other)
    if ours in ("prob", "parent") or (name == "select_nodes" and ours is None):
        return
    for place, (written, expected) in enumerate(zip(one, other, strict=True)):
        if place in ROOM.get(name, ()):
            continue
        np.testing.assert_array_equal(written, expected)


REFUSED = [
    *(("prob", (0, 0, 1), bad) for bad in (np.nan, -0.1, -1.5, 1.1, np.inf)),
    *(("parent", (0, 1), wrong) for wrong in (-1, 3, 2**62, -(2**62))),
]


@pytest.mark.parametrize(("what", "place", "wrong"), REFUSED)
def test_both_refuse_what_is_no_probability_or_parent(what, place, wrong):
    trees = np.ones((1, 9))
    given = {"prob": np.full((1, 2, 2), 0.5), "parent": np.array([[0, 1]])}
    given[what][place] = wrong
    for own in (scan_numpy, decision.kernels):
        found = own.score_level(trees, 1, 4, *given.values(), IDENTITY, 1, 9, 2, 2, 1)
        assert found == what


@pytest.mark.parametrize("name", NAMES)
def test_shapes_beyond_what_is_given_are_refused(name):
    for seed in range(50):
        arguments = list(getattr(Draw(seed), name)())
        if any(value.size == 0 for value in arguments if hasattr(value, "size")):
            continue
        for place, value in enumerate(arguments):
            if isinstance(value, int) and place >= len(arguments) - 4:
                wrong = [*arguments[:place], 10**6 + value, *arguments[place + 1 :]]
                with pytest.raises((ValueError, TypeError)):
                    getattr(decision.kernels, name)(*wrong)
                break


@pytest.mark.parametrize("batch", [2**61 + 1, 2**62 + 1, -1, -(2**61) + 1])
def test_a_count_that_wraps_is_refused(batch):
    """Eight bytes a value, as many as there are, modulo 2**64."""
    one = np.ones((1, 1))
    with pytest.raises(ValueError, match="do not fit"):
        decision.kernels.score_level(one, 0, 0, one, None, IDENTITY, batch, *[1] * 4)


HUGE = [(2**62, 4), (4, 2**62), (2**32, 2**32), (2**62, 0), (0, 2**62), (-1, -1)]


@pytest.mark.parametrize(("batch", "size"), HUGE)
def test_sizes_whose_product_wraps_are_refused(batch, size):
    """Modulo 2**64 each product is 0 or 1, so that an array would seem to hold it."""
    held = abs(batch * size) % 2**64
    values, places = np.full(held, 0.5), np.full(held, -1)
    own, shape = values.copy(), (batch, size)
    kernels = decision.kernels
    calls = (
        (kernels.score_level, own, 0, 0, values, None, IDENTITY, *shape, 1, size, 1),
        (kernels.score_level, own, 0, 0, values, None, IDENTITY, *shape, size, 1, 1),
        (kernels.level_pays, own, 0, 0, own, np.ones(1), 1, 1, 1, 1, 1, own, *shape),
        (kernels.score_by_parent, values, places, IDENTITY, own, *shape, 1),
        (kernels.rises, values, places, *shape),
    )
    for kernel, *given_ in calls:
        with pytest.raises(ValueError, match="do not fit"):
            kernel(*given_)
    assert np.array_equal(own, values)


@pytest.mark.parametrize("families", [(2**62, 4), (2**32, 2**32)])
def test_families_whose_product_wraps_are_refused(families):
    trees, none = np.full((1, 4), 0.5), np.empty(0)
    with pytest.raises(ValueError, match="do not fit"):
        decision.kernels.score_level(
            trees, 0, 4, none, None, IDENTITY, 1, 4, *families, 1
        )


@pytest.mark.parametrize("ranks", [-1, 3, 2**62, 2**63 - 1])
def test_ranks_beyond_the_curves_are_refused(ranks):
    one = np.ones((1, 1))
    with pytest.raises(ValueError, match="do not fit"):
        decision.kernels.score_level(one, 0, 0, one, None, IDENTITY, *[1] * 4, ranks)
    with pytest.raises(ValueError, match="do not fit"):
        decision.kernels.score_by_parent(
            one, one.astype(int), IDENTITY, one, 1, 1, ranks
        )

"""A step scores each node once, and decides as if it had scored all of them anew."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.lossless import ACCEPTANCES, DRAFTS, Combination, classify
from evict_profile.records import replace
from evict_profile.runtime import Calibration, CostTable, DecodingStep, Truncator
from evict_profile.runtime.costs import ALLOCATIONS, Overhead
from evict_profile.runtime.decision import Terms
from evict_profile.runtime.truncator import Rules
from tests.factories import ACCEPTANCE
from tests.runtime.forests import (
    CALIBRATIONS,
    LINKS,
    SHARES,
    TERMS,
    Rule,
    Tree,
    best_total,
    costs,
    scores_by_hand,
    value_of,
)

pytestmark = pytest.mark.usefixtures("loops")

EAGLE: dict[str, Any] = {"drafts": "topk", "acceptance": "target-only"}
Level = tuple[np.ndarray, np.ndarray | None]


class Given(NamedTuple):
    """Costs and a history that a test has chosen, in place of a table's."""

    us: np.ndarray
    terms_given: Terms
    clock: tuple[float, ...] = (0.0,)

    includes: tuple[str, ...] = ("verify",)
    forced: float | None = None
    table_us: np.ndarray | None = None

    def of_table(self, place):
        return self.us if self.table_us is None else self.table_us

    def to_decide(self, us):
        return us

    def at(self, batch, nodes, context):
        return self.us, (), (batch, nodes, context)

    def clock_us(self, batch):
        return np.array(self.clock)

    def overhead(self, batch, levels):
        return Overhead()

    def terms(self, batch):
        return self.terms_given


def begin(given, batch=1, allocation="batch", calibration=None, nodes=None):
    rules = Rules(given, given, calibration, allocation)
    return DecodingStep(rules, batch, 64.0, nodes)


@st.composite
def levels(draw, most_levels=3):
    batch = draw(st.integers(1, 3))
    made: list[Level] = []
    for _ in range(draw(st.integers(0, most_levels))):
        before = made[-1][0][0].size if made else 1
        families, children = (
            draw(st.integers(1, most)) for most in (min(2, before), 2)
        )
        share = st.lists(st.sampled_from(SHARES), min_size=children, max_size=children)
        falling = share.map(lambda row: sorted(row, reverse=True))
        prob = [[draw(falling) for _ in range(families)] for _ in range(batch)]
        places = [draw(st.permutations(range(before)))[:families] for _ in prob]
        made.append((np.array(prob), np.array(places) if made else None))
    return made


def forest_of(drafted, batch):
    forest = []
    for request in range(batch):
        parents: list[int] = []
        path: list[float] = []
        before = [-1]
        for prob, parent in drafted:
            fresh = []
            for family, shares in enumerate(prob[request]):
                above = before[0 if parent is None else parent[request, family]]
                for share in shares:
                    fresh.append(len(parents))
                    parents.append(above)
                    path.append(float(share) * (path[above] if above >= 0 else 1.0))
            before = fresh
        forest.append(Tree(tuple(parents), tuple(path)))
    return forest


def scored(forest, calibration):
    """The same trees with scores in place of path probabilities."""
    scores = []
    for tree in forest:
        own = tree.path_prob
        if calibration and calibration.conditional:
            own = scores_by_hand(calibration.conditional, tree)
        elif calibration:
            own = tuple(calibration.on_cpu(np.array(own)).tolist())
        scores.append(Tree(tree.parents, own))
    return scores


def planned(drafted, step):
    for level in drafted:
        step.extend(*level)
    return step.plan()


ACCEPTED = st.one_of(st.none(), CALIBRATIONS, LINKS.map(Calibration.by))


@settings(max_examples=75, deadline=None)
@given(levels(), st.sampled_from(ALLOCATIONS), ACCEPTED, TERMS, st.data())
def test_a_plan_is_the_best_of_all_closed_sets(
    drafted, allocation, calibration, terms, data
):
    batch = len(drafted[0][0]) if drafted else 1
    forest = forest_of(drafted, batch)
    cost_us = data.draw(costs(forest))
    scores, rule = scored(forest, calibration), Rule("ratio", allocation)
    best = best_total(scores, cost_us, rule, terms)
    sizes = rule.costs(cost_us, batch, len(forest[0].parents))
    ratio = replace(terms, rate=np.nan)
    step = begin(Given(sizes, ratio), batch, allocation, calibration)
    plan = planned(drafted, step)
    assert (plan.tokens, Fraction(plan.expected_accepted)) == best
    assert step.scores.tolist() == [list(tree.path_prob) for tree in scores]
    for tree, row in zip(forest, plan.keep.tolist(), strict=True):
        assert tree.is_closed(row)
    assert plan.widths.tolist() == [1 + sum(row) for row in plan.keep.tolist()]


@settings(max_examples=40, deadline=None)
@given(levels(), LINKS.map(Calibration.by), TERMS, st.integers(1, 4), st.data())
def test_of_more_nodes_than_a_request_can_verify_its_best_compete(
    drafted, calibration, terms, most, data
):
    batch = len(drafted[0][0]) if drafted else 1
    forest = forest_of(drafted, batch)
    most = min(most, len(forest[0].parents))
    cost_us = data.draw(
        st.lists(st.integers(1, 12), min_size=batch * (most + 1) + 1, max_size=99)
    )
    sums: dict[int, Fraction] = {0: Fraction()}
    for tree in scored(forest, calibration):
        own = dict(enumerate(tree.best_sums()[: most + 1]))
        sums = {
            total: max(sums[k] + own[total - k] for k in sums if total - k in own)
            for total in range(len(sums) + len(own) - 1)
        }
    values = {}
    for total, expected in sums.items():
        benefit = batch + Fraction(terms.acceptance_ratio) * expected
        values[total] = value_of(benefit, cost_us[batch + total], Rule(), terms)
    ratio = replace(terms, rate=np.nan)
    given = Given(Rule().costs(cost_us, batch, most), ratio)
    plan = planned(drafted, begin(given, batch, calibration=calibration, nodes=most))
    best = min(total for total in values if values[total] == max(values.values()))
    assert (plan.tokens, Fraction(plan.expected_accepted)) == (batch + best, sums[best])
    for tree, row in zip(forest, plan.keep.tolist(), strict=True):
        assert tree.is_closed(row) and sum(row) <= most


def best_value(scores, us, terms):
    gains = np.cumsum([0.0, *sorted(scores, reverse=True)])[: len(us)]
    tokens = terms.tokens + 1.0 + terms.acceptance_ratio * gains
    return float((tokens / (terms.us + us[: len(gains)])).max())


@settings(max_examples=50, deadline=None)
@given(
    levels().filter(lambda made: len(made) and len(made[0][0]) == 1),
    ACCEPTED,
    TERMS,
    st.lists(st.floats(0.1, 20.0), min_size=8, max_size=8),
    st.floats(0.0, 20.0),
)
def test_a_level_is_drafted_if_the_best_of_both_trees_has_it(
    drafted, calibration, terms, rises, level_us
):
    per_rank = (0.5, 0.25)
    own = replace(calibration or Calibration((0.0, 1.0), (0.0, 1.0)), per_rank=per_rank)
    us = np.cumsum([9.0, *rises])
    clock = np.cumsum([0.0, *(len(drafted) * [5.0]), level_us])
    step = begin(Given(us, terms, tuple(clock.tolist())), calibration=own)
    for level in drafted:
        step.extend(*level)
    scores = step.scores[0].tolist()
    last = drafted[-1][0][0].size
    topk = sorted(scores[-last:], reverse=True)[: len(per_rank)]
    more = [*scores, *(share * parent for share in per_rank for parent in topk)]
    here, further = us + clock[len(drafted)], us + clock[len(drafted) + 1]
    gained = best_value(more, further, terms) - best_value(scores, here, terms)
    if abs(gained) > 1e-9:
        assert step.deeper() == (gained > 0.0)


@pytest.mark.parametrize(
    ("clock", "sizes", "pays"),
    [
        ((0.0, 10.0, 13.9), 20, True),
        ((0.0, 10.0, 14.1), 20, False),
        # A tie stops.
        ((0.0, 10.0, 14.0), 20, False),
        # The nodes of the next level cannot be verified.
        ((0.0, 10.0, 10.1), 3, True),
        ((0.0, 10.0, 10.1), 2, False),
        # No further level was clocked.
        ((0.0, 1.0, 1.0), 20, True),
        ((0.0, 1.0), 20, False),
    ],
)
def test_one_level_by_hand(clock, sizes, pays):
    """A sure node now: 2 tokens in 20 us; with a half of one more 2.5 in 21 + x."""
    own = Calibration((0.0, 1.0), (0.0, 1.0), per_rank=(0.5,))
    step = begin(Given(9.0 + np.arange(float(sizes)), Terms(), clock), calibration=own)
    step.extend(np.array([[[1.0]]]))
    assert step.deeper() is pays


def test_large_trees_are_given_room(table):
    step = Truncator(table, calibration=None, outside="clamp", **EAGLE).begin(2, 64)
    rng, prob = np.random.default_rng(0), np.empty((2, 0))
    for level in range(4):
        fresh = np.sort(rng.random((2, 1, 50)), axis=2)[:, :, ::-1]
        parent = np.zeros((2, 1), int) if level else None
        above = prob[:, -50:][:, :1] if level else 1.0
        step.extend(fresh, parent)
        prob = np.concatenate([prob, above * fresh[:, 0]], axis=1)
    np.testing.assert_allclose(step.scores, prob)


@pytest.fixture
def table(workload_table):
    return CostTable.load(workload_table)


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("batch", [1, 2])
def test_it_decides_as_a_plan_of_the_whole_tree(table, allocation, batch):
    one, other = (Truncator(table, allocation=allocation, **EAGLE) for _ in range(2))
    rng = np.random.default_rng(0)
    for _ in range(40):
        step = one.begin(batch, 64, nodes=7)
        chain = rng.random((batch, 3))
        step.extend(chain[:, None, :1])
        step.extend(chain[:, None, 1:2], np.zeros((batch, 1), int))
        step.extend(chain[:, None, 2:], np.zeros((batch, 1), int))
        ours = step.plan()
        theirs = other.plan(
            torch.from_numpy(chain.cumprod(axis=1)),
            64,
            depth=torch.tensor([[1, 2, 3]]).repeat(batch, 1),
            parent=torch.tensor([[-1, 0, 1]]).repeat(batch, 1),
        )
        assert ours.keep.tolist() == theirs.keep.tolist()
        assert ours.expected_accepted == pytest.approx(theirs.expected_accepted)
        assert (ours.step_cost_us, ours.caveats) == (
            theirs.step_cost_us,
            theirs.caveats,
        )
        assert ours.includes == theirs.includes == ("verify", "draft", "fixed")
        step.observe(batch)
        other.observe(theirs, batch)
    assert (
        ours.acceptance_ratio == pytest.approx(theirs.acceptance_ratio)
        and ours.acceptance_ratio != 1.0
    )


def test_sure_steps_are_drafted_deeper(table):
    """And hopeless ones not; of any batch, and with uniform widths."""
    truncator = Truncator(table, allocation="uniform", **EAGLE)
    for batch, prob, pays in ((1, 1.0, True), (2, 1.0, True), (1, 1e-6, False)):
        step = truncator.begin(batch, 64)
        step.extend(np.full((batch, 1, 4), prob))
        assert step.deeper() is pays


UNRANKED = replace(ACCEPTANCE, per_rank=(), conditional=None)


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ({"drafting": None}, "no time of drafting"),
        ({"acceptance": None}, "no acceptance per rank"),
        ({"acceptance": UNRANKED}, "no acceptance per rank"),
    ],
)
def test_what_was_not_measured_is_named(table, lacks, says):
    """With the command that measures it; a plan needs none of it."""
    step = Truncator(replace(table, **lacks), **EAGLE).begin(1, 64)
    with pytest.raises(ConfigError, match=f"{says}.*evict-profile calibrate"):
        step.deeper()
    step.extend(np.array([[[0.5]]]))
    assert step.plan().tokens >= 1


FIRST = np.array([[[0.9, 0.1]]])


@pytest.mark.parametrize(
    ("prob", "parent", "says"),
    [
        *(
            (np.array([[[0.9, bad]]]), np.array([[0]]), r"NaN or outside \[0, 1\]")
            for bad in (float("nan"), -0.1, 1.1, float("inf"))
        ),
        (FIRST[0], None, r"give floats \[1, parents, children\]"),
        (FIRST.astype(int), np.array([[0]]), "int64"),
        (np.ones((2, 1, 2)), np.array([[0]]), r"give floats \[1, "),
        (FIRST, None, "None at the first level"),
        (FIRST, np.array([[2]]), "the place of each family's parent"),
        (FIRST, np.array([[-1]]), "the place of each family's parent"),
        (FIRST, np.array([[0, 1]]), "the place of each family's parent"),
        (FIRST, np.array([[0.0]]), "the place of each family's parent"),
        (torch.ones(1, 1, 2, device="meta"), None, "cannot be read on the host"),
    ],
)
def test_what_is_no_level_is_refused(table, prob, parent, says):
    step = Truncator(table, **EAGLE).begin(1, 64)
    step.extend(FIRST)
    with pytest.raises(ConfigError, match=says):
        step.extend(prob, parent)
    assert step.scores.shape == (1, 2)


def test_the_first_level_is_the_roots():
    for prob, parent in ((np.ones((1, 2, 1)), None), (FIRST, np.array([[0]]))):
        step = begin(Given(np.ones(4), Terms()))
        with pytest.raises(ConfigError, match="None at the first level"):
            step.extend(prob, parent)


def test_it_is_lossless_wherever_a_truncator_can_be_made():
    for drafts in DRAFTS:
        for acceptance in ACCEPTANCES:
            cut, depth = (
                classify(Combination(drafts, acceptance, rule, "own"))
                for rule in ("ratio", "depth")
            )
            assert depth.lossless or not cut.lossless


@pytest.mark.parametrize(("table_us", "regret"), [(None, 0.0), ([1.0, 1.0], 1.5)])
def test_the_regret_is_the_value_lost_by_the_tables_choice(table_us, regret):
    """A node of 0.5 takes 2 us, and the table's says 0: at a token a microsecond it
    loses 2 and gains 0.5, of one token.
    """
    table = None if table_us is None else np.array(table_us)
    step = begin(Given(np.array([1.0, 3.0]), Terms(), table_us=table))
    plan = step.plan_drafted(np.array([[0.5]]), None, None)
    assert not plan.host_keep.any()
    assert step.regret() == pytest.approx(regret)

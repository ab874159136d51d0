"""Where parents are given, a plan is a tree, or one sentence says why it cannot be."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.runtime import CostTable, Truncator

pytestmark = pytest.mark.usefixtures("loops")
EAGLE = {"drafts": "topk", "acceptance": "target-only"}
ROUGH = 1.0 + 2.0**-23
"""A softmax in float32 passes 1 by this."""


ONE_TABLE = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def truncators(workload_table):
    """By acceptance along the path, and by acceptance given the parent."""
    table = CostTable.load(workload_table)
    return [
        Truncator(own, outside="clamp", **EAGLE)
        for own in (replace(table, acceptance=None), table)
    ]


@st.composite
def drafts(draw, most=12):
    """Parents of a tree, and each node's probability given its parent."""
    parent = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(1, most)))]
    share = st.one_of(st.sampled_from([0.0, 1.0, ROUGH]), st.floats(0.0, 1.0, width=32))
    return parent, [draw(share) for _ in parent]


def products(parent, shares):
    """Path products in float32."""
    path = []
    for above, share in zip(parent, shares, strict=True):
        path.append(torch.tensor(share) * (path[above] if above >= 0 else 1.0))
    return torch.stack(path).float()


@settings(max_examples=100, suppress_health_check=ONE_TABLE)
@given(drafts(), st.integers(-9, 99))
def test_what_is_kept_holds_its_parents(truncators, drafted, padding):
    """Of path products, at every width; padding has any parent."""
    parent, path_prob = drafted[0], products(*drafted)
    path_prob = torch.cat((path_prob, torch.zeros(2)))[None]
    padded = torch.tensor([[*parent, padding, -1]])
    fixed = [
        Truncator(objective="fixed", width=width, depth=12, **EAGLE)
        for width in range(1, len(parent) + 1)
    ]
    for truncator in truncators + fixed:
        (keep,) = truncator.plan(path_prob, 64, parent=padded).keep.tolist()
        kept = [above for node, above in enumerate(parent) if keep[node]]
        assert all(keep[above] for above in kept if above >= 0)


@settings(max_examples=100, suppress_health_check=ONE_TABLE)
@given(drafts())
def test_conditional_probabilities_are_refused_where_they_rise(truncators, drafted):
    parent, shares = drafted
    rises = any(
        above >= 0 and shares[node] > 1.001 * shares[above]
        for node, above in enumerate(parent)
    )
    given_parent, parent = torch.tensor([shares]), torch.tensor([parent])
    for truncator in truncators if rises else []:
        with pytest.raises(ConfigError, match="give path products, not conditional"):
            truncator.plan(given_parent, 64, parent=parent)


@pytest.mark.parametrize("parent", [[5, 7], [-2, 0], [1, -1], [0, 0], [1, 0]])
def test_a_parent_that_is_not_before_its_child_is_refused(truncators, parent):
    for truncator in truncators:
        with pytest.raises(ConfigError, match=r"outside 0\.\.1, or one behind"):
            truncator.plan(torch.full((1, 2), 0.5), 64, parent=torch.tensor([parent]))

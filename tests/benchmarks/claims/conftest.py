"""A made-up recording of the small world's shape."""

import pytest

from benchmarks.claims.world import XEON, World
from evict_profile.records import replace
from evict_profile.table import CostTable
from tests.traces.synthetic import ABOUT, Plan, make_trace

SHAPE = replace(ABOUT, layers=16, experts=64, top_k=4, depth=5, topk=4, nodes=40)


@pytest.fixture(scope="session")
def trees():
    plan = Plan(prompts=10, tokens=8, about=SHAPE)
    return World(make_trace(plan), CostTable.load(XEON))

"""Made-up recordings of the small world's shape."""

import pytest

from benchmarks.claims.worlds import XEON, World
from evict_profile.records import replace
from evict_profile.table import CostTable
from tests.traces.synthetic import ABOUT, Plan, make_trace

SHAPE = replace(ABOUT, layers=16, experts=64, top_k=4, depth=5, topk=4, nodes=40)


def world(**about):
    shape = replace(SHAPE, **about)
    return World(
        make_trace(Plan(prompts=10, tokens=8, about=shape)), CostTable.load(XEON)
    )


@pytest.fixture(scope="session")
def trees():
    return world()


@pytest.fixture(scope="session")
def lines():
    return world(depth=7, topk=1, nodes=7)

"""A small trace, and a table that covers it, knows its drafter and its clock."""

import pytest

from evict_profile.fit.export import make_table
from evict_profile.records import replace
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import (
    Fixed,
    full_tree,
    plain_decoding,
    table_policies,
)
from evict_profile.replay.simulate import StepTimes
from tests.factories import ACCEPTANCE, DRAFTING
from tests.traces.synthetic import TINY, Plan, make_trace, write_trace


def policies(table):
    return {
        "plain": plain_decoding,
        "full tree": lambda: full_tree(24, 4),
        "pair": lambda: Fixed("pair", 2, 5),
        **table_policies(table, 4),
    }


@pytest.fixture(scope="session")
def trace():
    return make_trace(Plan(prompts=5, tokens=24))


@pytest.fixture(scope="session")
def bare_table(fitted):
    return make_table(fitted, "0" * 64)


@pytest.fixture(scope="session")
def table(bare_table):
    clocks = tuple(replace(clock, mechanism_us=0.0) for clock in DRAFTING.batches)
    drafting = replace(DRAFTING, batches=clocks)
    return replace(bare_table, acceptance=ACCEPTANCE, drafting=drafting)


@pytest.fixture(scope="session")
def arrays(trace):
    return TraceArrays(trace)


@pytest.fixture
def costs(table, arrays):
    return StepTimes(table, arrays, 1)


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory):
    """Of eight prompts that one would speculate on for sure."""
    path = tmp_path_factory.mktemp("trace") / "trace.parquet"
    return write_trace(path, Plan(prompts=4, tokens=10, trust=1.0, about=TINY))

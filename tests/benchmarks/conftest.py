"""A trace of one model and a table of another, which it informs."""

import pytest

from benchmarks.trace_driven import informed
from evict_profile.fit.export import make_table
from tests.traces.synthetic import Plan, make_trace


@pytest.fixture(scope="session")
def trace():
    """Two workloads of five prompts, 16 experts, top-2."""
    return make_trace(Plan(prompts=5, tokens=16))


@pytest.fixture(scope="session")
def table(fitted):
    """Of a model of 32 experts, top-4."""
    return make_table(fitted, "0" * 64)


@pytest.fixture(scope="session")
def informed_table(table, trace):
    """That table with what the trace tells; a drafted level is a tenth of a step."""
    return informed(table, trace, context=64, draft_share=0.1)

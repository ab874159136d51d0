"""Traces that no table can be made with."""

from dataclasses import replace

import numpy as np
import pytest

from evict_profile.errors import TraceError
from evict_profile.traces.fitness import require_one_temperature, require_trees
from evict_profile.traces.trace import make_step
from tests.traces.synthetic import Plan, make_trace


def test_temperatures_are_not_learnt_from_together() -> None:
    """The fix is named, and so is what there is."""
    pooled = make_trace(Plan(prompts=1, tokens=2, temperatures=(0.0, 1.0)))
    with pytest.raises(TraceError, match=r"temperatures 0, 1, .*--temperature"):
        require_one_temperature(pooled)
    require_one_temperature(pooled.only(temperature=1.0))


def test_plain_steps_alone_are_no_trees() -> None:
    """One tree anywhere is enough."""
    trace = make_trace(Plan(prompts=1, tokens=2))
    require_trees(trace)
    root = make_step(0, [], [], np.zeros(0, bool))
    bare = tuple(replace(reply, steps=(root,)) for reply in trace.replies)
    with pytest.raises(TraceError, match="holds no draft node"):
        require_trees(replace(trace, replies=bare))

"""A captured decision is the plan of the same step, in buffers that stay."""

import pytest
import torch

from evict_profile.errors import PlanError
from evict_profile.records import replace
from evict_profile.runtime import CostTable, Truncator
from evict_profile.runtime.decision import Rule, Terms
from evict_profile.runtime.decision_gpu import CapturedDecision

EAGLE = {"drafts": "topk", "acceptance": "target-only"}
HERE = torch.device("cpu")


@pytest.mark.parametrize("allocation", ["batch", "uniform"])
def test_it_decides_as_a_plan_does(saved_table, allocation):
    """Step after step, at changing contexts, with what was learnt between."""
    table = CostTable.load(saved_table)
    one, other = (Truncator(table, allocation=allocation, **EAGLE) for _ in range(2))
    captured = one.captured(2, 7, HERE)
    buffers = [buffer.data_ptr() for buffer in captured.decision]
    for step in range(20):
        trees = torch.rand(2, 7, generator=torch.Generator().manual_seed(step))
        context = 64 + 9 * step
        theirs = other.plan(trees, context)
        ours = one.price(captured, context)
        captured.path_prob.copy_(trees)
        captured.run()
        assert torch.equal(ours.keep, theirs.keep)
        assert torch.equal(ours.widths, theirs.widths)
        assert float(ours.step_cost_us) == theirs.step_cost_us
        assert ours.claimed == pytest.approx(theirs.claimed)
        one.observe(ours, 2, step_us=5000.0)
        other.observe(theirs, 2, step_us=5000.0)
    assert [buffer.data_ptr() for buffer in captured.decision] == buffers


def test_depths_are_read_from_a_buffer(workload_table):
    """For the time of drafting, step after step."""
    table = CostTable.load(workload_table)
    one, other = (Truncator(table, **EAGLE) for _ in range(2))
    captured = one.captured(2, 7, HERE, by_depth=True)
    for step in range(10):
        rng = torch.Generator().manual_seed(step)
        trees = torch.rand(2, 7, generator=rng)
        depth = torch.randint(1, 4, (2, 7), generator=rng)
        theirs = other.plan(trees, 64, depth=depth)
        ours = one.price(captured, 64)
        captured.path_prob.copy_(trees)
        captured.depth.copy_(depth)
        captured.run()
        assert torch.equal(ours.keep, theirs.keep)
        assert float(ours.step_cost_us) == pytest.approx(theirs.step_cost_us)
        assert (ours.caveats, ours.includes) == (theirs.caveats, theirs.includes)
        one.observe(ours, 2)
        other.observe(theirs, 2)
    assert one.captured(2, 7, HERE).depth is None


def test_parents_are_read_from_a_buffer(workload_table):
    """For the links, step after step; before the first, all are under the root."""
    table = CostTable.load(workload_table)
    one, other = (Truncator(table, **EAGLE) for _ in range(2))
    captured = one.captured(2, 7, HERE, by_parent=True)
    assert captured.parent.unique().tolist() == [-1]
    for step in range(10):
        rng = torch.Generator().manual_seed(step)
        chain = torch.rand(2, 3, generator=rng).cumprod(dim=1)
        trees = torch.cat([chain, torch.rand(2, 4, generator=rng)], dim=1)
        parent = torch.tensor([[-1, 0, 1, -1, -1, -1, -1]]).repeat(2, 1)
        theirs = other.plan(trees, 64, parent=parent)
        ours = one.price(captured, 64)
        captured.path_prob.copy_(trees)
        captured.parent.copy_(parent)
        captured.run()
        assert torch.equal(ours.keep, theirs.keep)
        assert float(ours.claimed) == pytest.approx(theirs.claimed)
        assert (ours.caveats, ours.includes) == (theirs.caveats, theirs.includes)
        one.observe(ours, 2)
        other.observe(theirs, 2)


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ({"acceptance": None}, "the calibration has none"),
        ({"drafting": None}, r"no depth to follow parents to.*parent\.cpu\(\)"),
    ],
)
def test_links_that_cannot_be_followed_are_refused(workload_table, lacks, says):
    """A graph has a fixed number of levels."""
    table = replace(CostTable.load(workload_table), **lacks)
    with pytest.raises(PlanError, match=says):
        Truncator(table, **EAGLE).captured(1, 7, HERE, by_parent=True)


def test_sizes_that_a_context_does_not_price_are_not_chosen():
    """A longer context may have been measured to fewer tokens."""
    captured = CapturedDecision(torch.ones(1, 5), 6, Rule())
    captured.price(torch.full((6,), 10.0, dtype=torch.float64), Terms())
    captured.run()
    assert captured.decision.widths.tolist() == [6]
    captured.price(torch.full((4,), 10.0, dtype=torch.float64), Terms())
    captured.run()
    assert captured.decision.widths.tolist() == [4]

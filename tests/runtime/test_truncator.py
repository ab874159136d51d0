"""Plans follow the table, the rule and the past; what is biased is refused."""

from pathlib import Path

import pytest
import torch

from evict_profile.errors import PlanError, TableError
from evict_profile.runtime import Calibration, CostTable, Truncator, select_widths

EAGLE = {"drafts": "topk", "acceptance": "target-only"}
TREE = torch.tensor([[0.9, 0.8, 0.5, 0.2, 0.1, 0.02]])


@pytest.fixture
def table(saved_table: Path) -> CostTable:
    """A table of a known cost: batches 1 and 2, contexts 64 to 256, 16 wide."""
    return CostTable.load(saved_table)


@pytest.mark.parametrize("allocation", ["batch", "uniform"])
def test_ratio_is_select_widths_on_the_tables_costs(
    table: CostTable, allocation: str
) -> None:
    """A truncator adds nothing to the paper's rule but the price."""
    trees = torch.cat([TREE, TREE**2])
    truncator = Truncator(table, objective="ratio", allocation=allocation, **EAGLE)
    plan = truncator.plan(trees, context=64)
    cost_us = table.step_cost_us(2, 64)
    expected = select_widths(trees, cost_us, "ratio", allocation=allocation)
    assert torch.equal(plan.widths, expected)
    assert torch.equal(plan.keep.sum(dim=1) + 1, plan.widths)
    assert plan.tokens == int(plan.widths.sum())
    assert plan.step_cost_us == cost_us[plan.tokens]
    assert plan.expected_tokens == pytest.approx(2 + float(trees[plan.keep].sum()))


def test_rate_starts_at_plain_decoding(table: CostTable) -> None:
    """Before any step, a node must earn what plain decoding would in its time."""
    plan = Truncator(table, **EAGLE).plan(TREE, context=64)
    cost_us = table.step_cost_us(1, 64)
    expected = select_widths(TREE, cost_us, "rate", rate=1.0 / cost_us[1])
    assert torch.equal(plan.widths, expected)


def test_rate_follows_what_steps_gained(table: CostTable) -> None:
    """Steps that commit four tokens at the predicted cost set the rate to that."""
    truncator = Truncator(table, **EAGLE)
    plan = truncator.plan(TREE, context=64)
    for _ in range(400):
        truncator.observe(plan, committed_tokens=4)
    rate = truncator.rate_per_us(1, plan.plain_us)
    assert rate == pytest.approx(4.0 / plan.step_cost_us, rel=1e-3)


def test_a_higher_rate_keeps_less(table: CostTable) -> None:
    """Time that earns more elsewhere buys fewer nodes here."""
    truncator = Truncator(table, **EAGLE)
    before = truncator.plan(TREE, context=64)
    for _ in range(100):
        truncator.observe(before, committed_tokens=6, step_us=before.plain_us)
    assert truncator.plan(TREE, context=64).tokens < before.tokens


def test_the_clock_counts_what_the_table_lacks(table: CostTable) -> None:
    """A step that took twice its price halves the rate."""
    rates = []
    for slower in (1.0, 2.0):
        truncator = Truncator(table, **EAGLE)
        plan = truncator.plan(TREE, context=64)
        for _ in range(400):
            truncator.observe(plan, 3, step_us=slower * plan.step_cost_us)
        rates.append(truncator.rate_per_us(1, plan.plain_us))
    assert rates[1] == pytest.approx(rates[0] / 2.0, rel=1e-3)


def test_groups_learn_apart(table: CostTable) -> None:
    """What one workload gains does not set the rate of another."""
    truncator = Truncator(table, **EAGLE)
    plan = truncator.plan(TREE, context=64, group="code")
    start = truncator.rate_per_us(1, plan.plain_us, "prose")
    truncator.observe(plan, committed_tokens=6)
    assert truncator.rate_per_us(1, plan.plain_us, "prose") == start
    assert truncator.rate_per_us(1, plan.plain_us, "code") != start


def test_drafting_time_makes_trees_wider(table: CostTable) -> None:
    """A fixed cost dilutes the marginal one, so that the ratio keeps more."""
    narrow, wide = (
        Truncator(table, objective="ratio", draft_us=draft_us, **EAGLE)
        for draft_us in (0.0, 1e5)
    )
    assert narrow.plan(TREE, 64).tokens < wide.plan(TREE, 64).tokens


def test_calibration_moves_the_benefit(table: CostTable) -> None:
    """A drafter twice too sure is believed half."""
    half = Calibration((0.0, 1.0), (0.0, 0.5))
    plain, doubted = (
        Truncator(table, objective="ratio", calibration=c, **EAGLE).plan(TREE, 64)
        for c in (None, half)
    )
    assert doubted.tokens < plain.tokens
    kept = float(TREE[doubted.keep].sum())
    assert doubted.expected_tokens == pytest.approx(1.0 + kept / 2.0)


def test_a_ladder_is_filled(table: CostTable) -> None:
    """A tier is paid whole, so all that pays at no further cost is kept."""
    truncator = Truncator(table, objective="ratio", ladder=[1, 7], **EAGLE)
    assert truncator.plan(TREE, 64).tokens in (1, 7)


def test_context_is_priced_to_the_nearest_step(table: CostTable) -> None:
    """130 is priced as 128; neither leaves the domain."""
    truncator = Truncator(table, objective="ratio", **EAGLE)
    near, exact = (truncator.plan(TREE, context=c) for c in (130, 128))
    assert near.step_cost_us == exact.step_cost_us
    assert truncator.plan(TREE, context=250).step_cost_us > exact.step_cost_us


def test_outside_is_refused_or_marked(table: CostTable) -> None:
    """As it was told."""
    with pytest.raises(TableError, match="context 999 is outside"):
        Truncator(table, **EAGLE).plan(TREE, context=999)
    clamped = Truncator(table, outside="clamp", **EAGLE).plan(TREE, context=999)
    assert clamped.marks == ("context 999 priced as 256",)


def test_a_tree_larger_than_was_measured(table: CostTable) -> None:
    """Refused, or cut to what is priced and marked."""
    large = torch.ones(1, 40)
    with pytest.raises(TableError, match="41 tokens with their roots, and 16"):
        Truncator(table, **EAGLE).plan(large, context=64)
    plan = Truncator(table, outside="clamp", **EAGLE).plan(large, context=64)
    assert plan.tokens <= 16
    assert plan.marks == ("of 41 tokens at most 16 are verified",)


@pytest.mark.parametrize("objective", ["ratio", "rate"])
def test_a_biased_rule_is_refused_and_a_lossless_one_named(
    table: CostTable, objective: str
) -> None:
    """p/q rejection of sampled drafts cannot be cut by their own scores."""
    with pytest.raises(PlanError, match=r"would change what the model says.*Lossless"):
        Truncator(table, objective=objective, drafts="sampled", acceptance="rejection")


@pytest.mark.parametrize("drafts", ["topk", "sampled"])
@pytest.mark.parametrize("acceptance", ["target-only", "match"])
def test_the_targets_own_samples_allow_any_rule(
    table: CostTable, drafts: str, acceptance: str
) -> None:
    """As EAGLE-2/3 in SGLang accepts."""
    Truncator(table, drafts=drafts, acceptance=acceptance).plan(TREE, 64)


def test_plans_repeat(table: CostTable) -> None:
    """The same tree and past, the same plan; the tree is left as it was."""
    truncator, before = Truncator(table, **EAGLE), TREE.clone()
    one, two = (truncator.plan(TREE, 64) for _ in range(2))
    assert torch.equal(one.keep, two.keep)
    assert torch.equal(TREE, before)

"""From a trace and a table to the table's next version and its page."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from evict_profile.calibrate import study
from evict_profile.calibrate.acceptance import MOST_KNOTS
from evict_profile.calibrate.study import calibrate, calibrated_table, calibration_study
from evict_profile.cost_model import CostShape, ForwardCost, HingeCost, Term
from evict_profile.errors import DataError
from evict_profile.fit.export import make_table
from evict_profile.records import replace
from evict_profile.report.calibration import show_calibration
from evict_profile.runtime import Truncator
from evict_profile.runtime.scoring import ConditionalScorer
from evict_profile.table import CostTable
from evict_profile.traces.schema import NEEDED
from tests.command import evict
from tests.traces import synthetic
from tests.traces.steps import steps_of
from tests.traces.synthetic import EXPERT_US, TINY, TOKEN_US, Plan, make_trace

PLAN = Plan(prompts=6, tokens=8, about=TINY)
SMALL = Plan(prompts=5, tokens=3, about=TINY)
NAME = "code+prose, synthetic, T=0: 96 trees of 12 prompts"
TRUST = 0.8

TOP_K = 2
NO_RAMPS = HingeCost((Term("one"),), np.array([0.0]))
TERMS = (Term("one"), Term("union"), Term("tokens"))
START_US = synthetic.PLAIN_US - EXPERT_US * TOP_K - TOKEN_US
SYNTHETIC = ForwardCost(
    CostShape(TOP_K, 0, 1),
    HingeCost(TERMS, np.array([START_US, EXPERT_US, TOKEN_US])),
    NO_RAMPS,
    1.0,
)
"""What the synthetic trace's verifications take, to the last microsecond."""


@pytest.fixture(scope="module")
def table(fitted):
    return make_table(fitted, samples_sha256="")


@pytest.fixture(scope="module")
def found(table):
    return calibration_study(make_trace(PLAN), table)


@pytest.fixture(scope="module")
def trace():
    return make_trace(Plan(prompts=10, tokens=40, trust=TRUST))


@pytest.fixture(scope="module")
def overconfident(trace):
    return calibrate(trace)


def calibrated(table, traces, *words):
    call = ("calibrate", table, traces, *words)
    return evict(*call, folder=traces.parent)


def test_the_command_writes_the_next_version(saved_table, tmp_path):
    traces = synthetic.write_trace(tmp_path / "t.parquet", PLAN)
    done = calibrated(saved_table, traces)
    assert done.exit_code == 0, done.stderr
    made = CostTable.load(tmp_path / "1.0.1.json")
    assert made.drafting is not None
    assert made.acceptance.workload == made.activation.workload == NAME
    assert not made.activation.is_guess
    assert "held-out errors" in done.stdout
    assert "does not cover this engine's verification" in done.stdout
    truncator = Truncator(made, drafts="topk", acceptance="target-only")
    path_prob, depth = torch.tensor([[0.9, 0.5, 0.01]]), torch.tensor([[1, 2, 2]])
    plan = truncator.plan(path_prob, context=64, depth=depth)
    assert plan.keep.shape == (1, 3)


def test_a_part_of_a_trace_and_another_tree_can_be_named(saved_table, tmp_path):
    plan = replace(SMALL, temperatures=(0.0, 1.0))
    traces = synthetic.write_trace(tmp_path / "t.parquet", plan)
    chosen = ("--workload", "code", "--temperature", "1", "--tables", "tree")
    calibrated(saved_table, traces, *chosen)
    [path] = (tmp_path / "tree").rglob("1.0.1.json")
    workload = CostTable.load(path).acceptance.workload
    assert workload.startswith("code, synthetic, T=1: 15 trees")


def test_without_routes_the_activation_curve_stays_and_that_is_said(
    saved_table, tmp_path
):
    whole = synthetic.write_trace(tmp_path / "whole.parquet", PLAN)
    code_alone = pq.read_table(whole, filters=[("workload", "=", "code")])
    traces = tmp_path / "t.parquet"
    pq.write_table(code_alone.select(NEEDED), traces)
    done = calibrated(saved_table, traces)
    assert done.exit_code == 0, done.stderr
    before, made = CostTable.load(saved_table), CostTable.load(tmp_path / "1.0.1.json")
    assert made.activation == before.activation
    assert made.activation.is_guess
    assert made.acceptance is not None
    assert "The trace holds no routes" in done.stdout


def test_a_table_of_another_model_is_refused(table):
    with pytest.raises(DataError, match=r"3 MoE layers of 16.*4 MoE layers of 32"):
        calibration_study(make_trace(), table)


def test_costs_are_read_at_the_measured_activation(found, table):
    made = calibrated_table(found, table)
    before, after = table.step_cost_us(1, 64), made.step_cost_us(1, 64)
    assert np.all(after <= before + 0.1)
    assert after[-1] < 0.99 * before[-1]


def test_the_terminal_shows_every_calibrator_with_its_scores(found, table):
    console = Console(record=True, width=100)
    show_calibration(console, found, table)
    said = console.export_text()
    for name, error in found.calibrated.errors.items():
        assert name in said
        assert f"{error.brier.value:.4f}" in said
        assert f"{error.ece:.4f}" in said
    for title in ("whole trees, batch 4", "drafting"):
        assert title in said


def test_a_curve_pays_where_the_drafter_promises_too_much(overconfident):
    assert overconfident.chosen == "isotonic"
    errors = overconfident.errors
    assert errors[overconfident.chosen].ece < errors["raw"].ece / 3
    assert errors["raw"].excess_brier.low > 0.0


def test_a_calibrated_drafter_is_hardly_changed():
    plan = Plan(prompts=10, tokens=30, trust=1.0)
    trace = make_trace(plan)
    chance = calibrate(trace).curves(trace.nodes)
    assert np.abs(chance - trace.nodes.path_prob).mean() < 0.02


def test_table_holds_both_errors_and_one_row(overconfident):
    thirds = replace(overconfident, per_rank=np.array([1 / 3, 1 / 3, 1 / 3]))
    acceptance = study.as_acceptance(thirds, "made up", 7)
    assert (acceptance.workload, acceptance.steps) == ("made up", 7)
    assert (len(acceptance.acceptances), len(acceptance.held_out)) == (1, 2)
    assert acceptance.held_out["calibrated"].ece < acceptance.held_out["raw"].ece
    assert sum(acceptance.per_rank) <= 1.0


def test_a_runtime_scores_by_the_conditionals_of_a_table_as_they_were_fitted(
    trace, overconfident
):
    nodes = trace.nodes
    table = study.as_acceptance(overconfident, "made up", 7).conditional
    assert len(table.scores) <= MOST_KNOTS
    scorer = ConditionalScorer(table)
    chance, start = overconfident.conditional(nodes), 0
    for step in steps_of(trace):
        (own,) = scorer.on_cpu(step.path_prob[None], step.parent[None])
        np.testing.assert_allclose(own, chance[start : start + len(own)], atol=1e-9)
        start += len(own)
    assert start == len(nodes)


@pytest.mark.parametrize(
    ("share", "error", "says"),
    [
        (1.0, 0.0, "the table covers natural routing"),
        (0.75, 0.25, "does not cover this engine's"),
    ],
)
def test_costs_are_held_against_the_traces_clocks(share, error, says):
    """At the tokens and the union that each step verified; a recorder half as fast as
    the table's machine took twice as long."""
    layers, timed = SYNTHETIC.layers.us_per_unit * share, make_trace(Plan(tokens=8))
    slow = replace(timed, verify_us=2.0 * timed.verify_us)
    cost = replace(SYNTHETIC, layers=HingeCost(TERMS, layers))
    check = study.check_costs(slow, cost, 0.5)
    assert check.holds == (error == 0.0)
    assert check.error.median == pytest.approx(error, abs=1e-5)
    assert check.ratio == pytest.approx(1.0 / share)
    assert says in str(check)


def test_drafting_is_the_engines_clock(found, table):
    """Without clocks there is nothing to check."""
    blind = calibration_study(replace(found.trace, verify_us=None, clocks=()), table)
    assert blind.costs is blind.drafting is None
    times, fixed_us = found.drafting, synthetic.FIXED_US
    assert (times.workload, times.engine) == (NAME, "synthetic 1")
    assert [clock.batch for clock in times.batches] == [1, 4]
    alone, levels = times.batches[0], np.arange(5)
    assert alone.draft_us == pytest.approx(synthetic.DRAFT_US * levels)
    assert (alone.fixed_us, alone.plain_fixed_us) == (fixed_us, 0.25 * fixed_us)

"""A trace of one model over the forwards of another, at prices that are measured."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.forwards import Forwards, feasible
from benchmarks.trace_driven import Carried, MeasuredPrices, compare, main, share_in
from evict_profile.config import load_model
from evict_profile.errors import ConfigError, TraceError
from evict_profile.replay.compare import MIXED, Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import AR, ORACLE, RATE, RATE_DEPTH, Fixed
from evict_profile.replay.simulate import simulate
from evict_profile.table import CostTable
from tests.factories import DRAFTING
from tests.traces.synthetic import ABOUT, Plan, make_trace, write_trace

NON_MOE_US, EXPERT_US, TOKEN_US = 50.0, 10.0, 2.0
QWEN = load_model("qwen3-30b-a3b")
CARRIED = Carried(ABOUT, QWEN)


class Scripted:
    """Times forwards by a formula; `asked` are the cells that it was asked for."""

    def __init__(self):
        self.asked: list[tuple[str, int, int, int]] = []
        self.reference_us = math.nan
        self.slow = 1.0

    def measure(self, ask):
        """A sample for each seed, all alike."""
        cell = ask["cell"]
        self.asked.append(tuple(cell[n] for n in ("part", "width", "union", "batch")))
        tokens = cell["width"] * cell["batch"]
        layers_us = EXPERT_US * cell["union"] + TOKEN_US * tokens
        us = NON_MOE_US if cell["part"] == "non_moe" else layers_us
        sample = {"clock_us": self.slow * us, "reference_us": self.reference_us}
        return {"samples": [sample for _ in ask["seeds"]]}


@pytest.fixture
def scripted():
    """A clock by formula."""
    return Scripted()


def uniform(tokens):
    """What uniform routing would wake in the traced model."""
    return ABOUT.experts * (1.0 - (1.0 - ABOUT.top_k / ABOUT.experts) ** tokens)


@given(st.integers(1, 500), st.floats(0.2, 1.0))
def test_share_of_uniform_is_kept(tokens, share):
    """What stays behind uniform routing here stays as far behind there."""
    union = np.array([share * uniform(tokens)])
    carried = CARRIED.union(np.array([float(tokens)]), union)[0]
    assert carried == pytest.approx(share * CARRIED.model.uniform_union(tokens))


@pytest.mark.parametrize(
    ("tokens", "union", "carried"),
    [
        (1.0, ABOUT.top_k, QWEN.moe.top_k),
        (0.0, 0.0, 0.0),
        (60.0, 2.0 * ABOUT.experts, QWEN.moe.num_experts),
    ],
)
def test_carried_unions_stay_in_the_other_model(tokens, union, carried):
    """A token's top-k becomes the other's, nothing stays nothing, all is all."""
    found = CARRIED.union(np.array([tokens]), np.array([float(union)]))
    assert found[0] == pytest.approx(carried)


def test_table_is_informed(table, informed_table):
    """It holds the trace's acceptance, a growth of its own model, and drafting."""
    growth = np.array(informed_table.activation.union)
    assert informed_table.acceptance is not None
    assert growth[1] == pytest.approx(table.model.moe.top_k, abs=1e-3)
    assert np.all(np.diff(growth) >= 0.0)
    assert growth[-1] <= table.model.moe.num_experts
    assert {each.batch for each in informed_table.activation.by_batch} == {1, 4}


def test_drafting_is_a_share_of_a_plain_step(informed_table, trace):
    """So many levels, each a share of what the table prices plain decoding at."""
    assert informed_table.drafting is not None
    clock = informed_table.drafting.batches[0]
    stairs = next(s for s in informed_table.staircases if s.batch == clock.batch)
    plain_us = stairs.step_cost_us[clock.batch]
    assert len(clock.draft_us) == trace.about.depth + 1
    assert clock.draft_us[2] / plain_us == pytest.approx(0.2, rel=0.05)
    assert clock.fixed_us == clock.plain_fixed_us == 0.0


def test_share_of_a_world(workload_table):
    """Its mean level over its plain step, host included."""
    known = CostTable.load(workload_table)  # type: ignore[arg-type]
    clock = DRAFTING.batches[0]
    stairs = next(s for s in known.staircases if s.batch == 1)
    plain_us = stairs.step_cost_us[1] + clock.plain_fixed_us
    share = share_in(known, stairs.context)
    assert math.isclose(share, clock.draft_us[-1] / 3 / plain_us, rel_tol=0.05)


def test_a_world_without_clocks_is_refused(table):
    """Naming what to give instead."""
    with pytest.raises(ConfigError, match="--draft-share"):
        share_in(table, 64)


@given(st.integers(1, 600), st.floats(0.0, 200.0))
def test_feasible_unions_can_be_forced(tokens, union):
    """At least one token's experts, at most what so many tokens can wake."""
    found = feasible(QWEN, tokens, union)
    assert QWEN.smallest_union() <= found <= QWEN.largest_union(tokens)
    if QWEN.smallest_union() < found < QWEN.largest_union(tokens):
        assert found % 4 == 0
        assert abs(found - union) <= 2.0


def test_a_forward_is_measured_once(scripted):
    """Unions that round to one point are one; the rest does not depend on it."""
    forwards = Forwards(scripted.measure, QWEN, QWEN.moe_layers, 128)
    first, again = forwards.of(4, 23.0, 1), forwards.of(4, 24.9, 1)
    forwards.of(4, 12.0, 1)
    assert first is again
    assert scripted.asked == [
        ("non_moe", 4, 0, 1),
        ("layers", 4, 24, 1),
        ("layers", 4, 12, 1),
    ]


def test_moe_layers_are_scaled_and_the_rest_is_not(scripted):
    """Half the layers stand for all."""
    forwards = Forwards(scripted.measure, QWEN, QWEN.moe_layers // 2, 128)
    layers_us = EXPERT_US * 24 + TOKEN_US * 4
    assert forwards.of(4, 24.0, 1).us == 2.0 * layers_us + NON_MOE_US
    assert forwards.spread == 0.0


def test_tokens_are_shared_out_over_the_batch(scripted):
    """Ragged trees run at their mean width, rounded up."""
    Forwards(scripted.measure, QWEN, 48, 128).of(9, 40.0, 4)
    assert scripted.asked[-1] == ("layers", 3, 40, 4)


def test_a_slower_machine_tells_no_other_time(scripted):
    """Where the clock has a reference, both slow down together."""
    forwards = Forwards(scripted.measure, QWEN, 48, 128)
    scripted.reference_us = 10.0
    before = forwards.of(4, 24.0, 1)
    scripted.reference_us, scripted.slow = 20.0, 2.0
    assert forwards.of(8, 24.0, 1).us == before.us + 4.0 * TOKEN_US


def test_a_walk_is_charged_what_ran(scripted, trace, informed_table):
    """Verification by the clock, drafting by its share, and nothing else."""
    model = informed_table.model
    arrays = TraceArrays(trace)
    forwards = Forwards(scripted.measure, model, model.moe_layers, 64)
    prices = MeasuredPrices(informed_table, arrays, 1, forwards, 0.1)
    plain = simulate(arrays, Fixed("", 0, 1), prices, 1, 0)
    plain_us = NON_MOE_US + EXPERT_US * model.moe.top_k + TOKEN_US
    assert np.all(plain.step_us == plain_us)
    deep = simulate(arrays, Fixed("", 3, 8), prices, 1, 0)
    assert deep.price[:, 1] == pytest.approx(0.3 * plain_us)
    assert np.all(deep.price[:, 2] == 0.0)
    assert np.all(deep.price[:, 0] >= NON_MOE_US + 8 * TOKEN_US)


def test_a_trace_without_routes_is_refused(scripted, informed_table):
    """There is nothing to carry over."""
    arrays = TraceArrays(make_trace(Plan(prompts=5, tokens=16)))
    arrays.has_routes = False
    forwards = Forwards(scripted.measure, informed_table.model, 4, 64)
    with pytest.raises(TraceError, match="no routes"):
        MeasuredPrices(informed_table, arrays, 1, forwards, 0.1)


def test_all_policies_are_walked(scripted, trace, informed_table):
    """Those that read a table as well; nobody beats who knows what is accepted."""
    model = informed_table.model
    forwards = Forwards(scripted.measure, model, model.moe_layers, 64)
    cell = compare(trace, Scenario(MIXED, 0.0, 1), informed_table, forwards, 0.1)
    assert cell.of(AR).over[AR].value == 1.0
    assert {RATE, RATE_DEPTH, ORACLE} <= {each.policy for each in cell.results}
    best = cell.of(ORACLE).tokens_per_s.value
    assert all(each.tokens_per_s.value <= best for each in cell.results)
    assert len(scripted.asked) == len(set(scripted.asked))


def test_a_table_of_another_model_is_refused(saved_table, tmp_path, capsys):
    """In one sentence, and exit code 2."""
    traces = write_trace(tmp_path / "t.parquet", Plan(prompts=4, tokens=4))
    words = [str(traces), "--table", str(saved_table), "--model", "qwen3-30b-a3b"]
    words += ["--out", str(tmp_path / "driven.json")]
    assert main([*words, "--draft-share", "0.1"]) == 2
    assert "--table prices" in capsys.readouterr().err


@pytest.mark.parametrize("layers", ["0", "many"])
def test_layers_are_a_number_or_auto(layers):
    """Refused by argparse, with exit code 2."""
    words = ["t.parquet", "--table", "t.json", "--draft-share", "0.1"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--layers", layers])
    assert ended.value.code == 2

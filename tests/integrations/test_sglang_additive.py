"""SGLang's additive table: the nearest sum, and how far it is off."""

import json
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.errors import TableError
from evict_profile.integrations.by_tokens import measured_tokens, staircases_at
from evict_profile.integrations.formats import write_format
from evict_profile.integrations.sglang_additive import (
    AdditiveCost,
    additive_table,
    fit_additive,
)
from evict_profile.stats import summarise_errors
from evict_profile.table import CostTable, Staircase
from tests.integrations.tables import any_staircases, staircase, with_staircases

STEPS = st.lists(st.floats(0.0, 500.0), min_size=11, max_size=11)


@pytest.fixture
def sglang_sps() -> ModuleType:
    """SGLang's own module of table formats."""
    return pytest.importorskip(
        "sglang.srt.speculative.dspark_components.dspark_sps",
        reason="SGLang is not installed here",
        exc_type=ImportError,
    )


def looked_up_us(cost: AdditiveCost, requests: int, tokens: int) -> float:
    """What SGLang reads: both parts interpolated linearly and clamped."""
    alpha = np.interp(requests, cost.bs_probes, cost.alpha_seconds)
    theta = np.interp(tokens, cost.m_probes, cost.theta_seconds)
    return float(1e6 * (cost.bias_seconds + alpha + theta))


@settings(deadline=None)
@given(bias_us=st.floats(10.0, 1e6), alpha_us=st.floats(0.0, 1e4), steps_us=STEPS)
def test_a_sum_is_found_again(
    bias_us: float, alpha_us: float, steps_us: list[float]
) -> None:
    """Costs that are a sum come back to within a nanosecond of each of its parts."""
    theta_us = list(accumulate(steps_us, initial=0.0))
    one = staircase(1, [bias_us + theta for theta in theta_us[:8]])
    four = staircase(4, [bias_us + alpha_us + theta for theta in theta_us[3:]])
    cost = fit_additive([one, four])
    for stairs in (one, four):
        for tokens in measured_tokens(stairs):
            price_us = stairs.step_cost_us[tokens]
            found_us = looked_up_us(cost, stairs.batch, tokens)
            assert found_us == pytest.approx(price_us, rel=1e-6, abs=0.002)


@settings(deadline=None)
@given(staircases=any_staircases())
def test_the_stated_error_is_that_of_the_look_up(staircases: list[Staircase]) -> None:
    """Whatever the costs: a refusal, or a positive bias and the error one would see."""
    try:
        cost = fit_additive(staircases)
    except TableError:
        return
    assert cost.bias_seconds > 0.0
    assert min(*cost.alpha_seconds, *cost.theta_seconds) >= 0.0
    places = [(s, tokens) for s in staircases for tokens in measured_tokens(s)]
    seen = summarise_errors(
        np.array([looked_up_us(cost, s.batch, tokens) for s, tokens in places]),
        np.array([s.step_cost_us[tokens] for s, tokens in places]),
    )
    assert seen.max == pytest.approx(cost.error.max, abs=1e-3)
    assert seen.median == pytest.approx(cost.error.median, abs=1e-3)


def test_one_batch_is_refused(table: CostTable) -> None:
    """The price of a request cannot be told from that of a token."""
    lone = with_staircases(table, staircase(1, [10.0, 11.0]))
    with pytest.raises(TableError, match="batch 1 is the only one at context 64"):
        additive_table(lone, None)


def test_batches_without_a_common_count_are_refused(table: CostTable) -> None:
    """Nor can it where each batch has token counts of its own."""
    apart = staircase(1, [10.0, 11.0]), staircase(8, [30.0, 31.0])
    with pytest.raises(TableError, match="batch 8 shares no token count"):
        additive_table(with_staircases(table, *apart), None)


def test_costs_that_fall_steeply_are_refused() -> None:
    """SGLang wants a bias above 0, and no sum with one is near these costs."""
    falling = staircase(1, [9600.0, 6200.0, 69.0, 1074.0])
    rising = staircase(2, [98.0, 131.0, 1390.0, 46.0])
    with pytest.raises(TableError, match="positive bias"):
        fit_additive([falling, rising])


def test_the_draft_is_in_the_bias(table: CostTable) -> None:
    """Once a step, whatever is verified."""
    bare, whole = (additive_table(table, None, ms).fields for ms in (None, 2.5))
    assert whole["bias_seconds"] - bare["bias_seconds"] == pytest.approx(0.0025)
    assert whole["theta_seconds"] == bare["theta_seconds"]


def test_probes_are_written_as_whole_numbers(table: CostTable) -> None:
    """SGLang's decoder is strict: it refuses 2.0 where it wants 2."""
    fields = additive_table(table, None).fields
    probes = (*fields["bs_probes"], *fields["m_probes"])
    assert {type(probe) for probe in probes} == {int}


def test_the_note_states_the_error(table: CostTable) -> None:
    """What additivity loses of this very table."""
    error = fit_additive(staircases_at(table, 256)).error
    assert f"off by {error}" in " ".join(additive_table(table, 256).notes)


def test_sglang_loads_the_file_and_reads_our_prices(
    table: CostTable, tmp_path: Path, sglang_sps: ModuleType
) -> None:
    """SGLang's own loader and look-up agree with ours, between probes and beyond."""
    path = tmp_path / "additive.json"
    write_format(table, "sglang-sps-additive", path)
    loaded = sglang_sps.load_sps_table_from_path(str(path))
    assert isinstance(loaded, sglang_sps.SpsAdditiveCostTable)
    cost = fit_additive(staircases_at(table, None))
    for requests in range(1, 4):
        for budget in range(50):
            theirs = loaded.step_time(num_reqs=requests, budget=budget)
            ours = looked_up_us(cost, requests, requests + budget)
            assert 1e6 * theirs == pytest.approx(ours)
    assert "bias_seconds" in json.loads(path.read_text(encoding="utf-8"))

"""A step as served, drawn: milliseconds, batches by name, and what pays for drafts."""

import re

import pytest

from evict_profile.records import replace
from evict_profile.report.figures_step import (
    break_even,
    equal_experts_us,
    step_latency,
    step_rows,
)
from evict_profile.report.numbers import MS
from evict_profile.report.tables import break_even_rows
from evict_profile.served.step import ServedStep
from evict_profile.table import DATASHEET, BatchActivation, CostTable
from tests.factories import DRAFTING


@pytest.fixture(scope="module")
def table(composed_path):
    return CostTable.load(composed_path)


@pytest.fixture(scope="module")
def served(table):
    return ServedStep.of(table)


def titles(drawing):
    return re.findall("<title>(.*?)</title>", drawing)


def test_a_step_is_drawn_in_milliseconds_with_its_interval(served):
    n = served.table.axes.width[-1]
    step = served.us(1, n, 0, 512)
    shown = next(t for t in titles(step_latency(served)) if f"n = {n}:" in t)
    numbers = re.findall(r"\d+\.?\d*", shown.partition(":")[2])
    ends = [us / 1e3 for us in (step.value, step.low, step.high)]
    assert [float(number) for number in numbers[:3]] == pytest.approx(ends, rel=0.01)


def test_every_batch_is_named_in_both_drawings(served):
    for drawing in (step_latency(served), break_even(served)):
        words = re.sub("<title>.*?</title>", "", drawing)
        assert all(f"batch {batch}" in words for batch in served.table.axes.batch)


def test_break_even_is_the_ratio_of_the_served_step(table):
    served = ServedStep.of(table, DRAFTING)
    rows = break_even_rows(replace(table, drafting=DRAFTING))
    ratio = served.ratio(1, 4, 3, 512)
    assert float(rows.cells[0][3]) == pytest.approx(ratio.value, abs=0.01)
    [shown] = [t for t in titles(break_even(served)) if t[:14] == "batch 1, K = 3"]
    assert shown.endswith(f"{ratio.value:.2f} ({ratio.low:.2f}..{ratio.high:.2f})")


def test_equal_experts_cost_less_the_more_tokens_are_verified(served):
    widths = list(served.table.axes.width)
    step_us = [served.us(1, n, 0, 512).value for n in widths]
    share = equal_experts_us(served, 1, widths) / step_us
    assert share[0] == pytest.approx(1.0, rel=1e-4)
    assert share[-1] < 0.8


def test_each_batch_is_drawn_at_the_experts_that_it_activates(table):
    """A text that repeats itself at batch 4 costs less there, and not at batch 1."""
    known = replace(table.activation, is_guess=False)
    halved = BatchActivation(4, tuple(union / 2.0 for union in known.union))
    own = BatchActivation(1, known.union), halved
    plain, repeated = (
        titles(step_latency(ServedStep.of(replace(table, activation=u).read_anew())))
        for u in (known, replace(known, by_batch=own))
    )
    changed = {a[:7] for a, b in zip(plain, repeated, strict=True) if a != b}
    assert changed == {"batch 4"}


def test_numbers_have_a_row_a_width_and_a_column_a_batch(served):
    axes, rows = served.table.axes, step_rows(served)
    assert len(rows.cells) == len(axes.context) * len(axes.width)
    assert rows.cells[0][2] == MS.spread(served.us(axes.batch[0], 1, 0, 512))


def test_costs_of_a_data_sheet_have_no_interval(view):
    made = replace(view.table.provenance, clock=DATASHEET)
    computed = ServedStep.of(replace(view.table, provenance=made))
    assert all("(" not in text for text in titles(step_latency(computed)))
    assert all("(" in text for text in titles(step_latency(ServedStep.of(view.table))))

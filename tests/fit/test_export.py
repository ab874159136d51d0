"""From a fitted run, or a workload, to a table on disk."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from evict_profile.drafting import DraftClock, Drafting, TimedRound
from evict_profile.errors import DataError, MeasurementError
from evict_profile.fit.export import (
    activation_of,
    export_table,
    export_workload,
    make_table,
    outcome,
    with_workload,
)
from evict_profile.fit.fitted import fit_run
from evict_profile.records import replace
from evict_profile.runtime import Truncator
from evict_profile.sweep.latency import Samples
from evict_profile.sweep.store import Store
from evict_profile.table import ActivationCurve, CostTable, store
from evict_profile.table.document import file_sha256
from tests.factories import ACCEPTANCE, ACTIVATION, DRAFTING, SWEEP, write_run


def test_an_exported_table_loads_as_it_was_made(fitted, tmp_path):
    """Under the path that its key gives, with the samples to refit it beside it."""
    table, path = export_table(fitted, tmp_path)
    assert CostTable.load(path) == table
    samples = path.with_suffix(".parquet")
    assert file_sha256(samples) == table.provenance.samples_sha256
    assert path.relative_to(tmp_path) == Path("a-test/tiny/scripted/1.0.0.json")


def test_measuring_again_is_the_next_patch_and_exporting_again_none(fitted, tmp_path):
    """Also where a calibrated table of the same samples has come between."""
    table, first = export_table(fitted, tmp_path)
    calibrated = with_workload(table, ACCEPTANCE, ACTIVATION, DRAFTING)
    assert export_workload(calibrated, first)[1].stem == "1.0.1"
    again = export_table(fitted, tmp_path)
    assert again == (table, first)
    assert outcome(*again) == f"unchanged: {first}"
    frame = fitted.frame.assign(clock_us=1.001 * fitted.frame["clock_us"])
    other = export_table(replace(fitted, samples=Samples(frame)), tmp_path)
    assert outcome(*other) == f"table: {first.with_name('1.0.2.json')}"


@pytest.mark.parametrize(
    ("rests_us", "told_us"),
    [((20.0, 60.0, 140.0), [20.0, 60.0, 140.0]), ((29.0, 30.0, 32.0), 30.0)],
)
def test_a_step_of_a_table_takes_as_long_as_rounds(fitted, rests_us, told_us):
    """At the speed of the sweep; in the median where the rest rises less than noise."""
    made = replace(fitted.provenance, reference_us=40.0)
    tokens = np.array([2.0, 4.0, 8.0])
    forward_us = fitted.cost.latency_us(tokens, 2.0 * tokens, 64.0, 1.0)
    rounds = tuple(
        TimedRound(int(n), 2.0 * n, 64.0, 2.0 * (us + 250.0 + rest_us))
        for n, us, rest_us in zip(tokens, forward_us, rests_us, strict=True)
    )
    slow = DraftClock(1, (0.0, 200.0, 500.0), 10.0, 4.0, 80.0, rounds)
    timed = replace(fitted, provenance=made, clocks=(slow,))
    table = make_table(timed)
    [clock] = table.drafting.batches
    drafts_us = table.drafting.tokens_us([2, 4, 8], 1, table.axes.capture_sizes)
    rests = drafts_us + clock.beside_us(2) - 250.0
    assert rests == pytest.approx(told_us, abs=0.1)
    assert clock.plain_fixed_us == 2.0


@pytest.mark.parametrize("wait_s", [60.0, 0.0])
def test_two_exports_of_one_key_wait_for_each_other(
    fitted, tmp_path, monkeypatch, wait_s
):
    """Each has a version of its own; a wait in vain is one sentence."""
    monkeypatch.setattr(store, "WAIT_S", wait_s)
    table, begun, go_on = make_table(fitted), Event(), Event()
    write = store.write_atomically

    def write_late(*arguments):
        begun.set()
        assert go_on.wait(60.0)
        write(*arguments)

    monkeypatch.setattr(store, "write_atomically", write_late)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(store.save_next, table, tmp_path)
        assert begun.wait(60.0)
        second = pool.submit(store.save_next, table, tmp_path)
        if not wait_s:
            with pytest.raises(DataError, match="another process is writing into it"):
                second.result()
        go_on.set()
        assert first.result()[1].stem == "1.0.0"
    assert wait_s == 0.0 or second.result()[1].stem == "1.0.1"
    assert not list(tmp_path.glob(".*"))


def test_the_staircase_rises_and_starts_at_its_roots(fitted, tmp_path):
    """One entry a token count, flat below the batch, never falling, in its interval."""
    table, _ = export_table(fitted, tmp_path)
    stairs = table.costs(batch=2, context=64)
    costs = np.array(stairs.step_cost_us)
    assert len(costs) == 2 * 16 + 1
    assert costs[0] == costs[1] == costs[2]
    assert np.all(np.diff(costs) >= 0.0)
    assert np.all(np.array(stairs.low_us) <= np.array(stairs.high_us))


def test_unions_of_a_text_stand_where_a_runner_routed_one(fitted):
    """Half of uniform routing's guess, between the measured tokens as well."""
    facts = {**fitted.provenance.fingerprint, "text": "argparse.py"}
    made = replace(fitted.provenance, fingerprint=facts)
    frame = fitted.frame.copy()
    frame.loc[frame["split"] == "natural", "observed_union"] *= 0.5
    guess = activation_of(fitted, 32)
    curve = activation_of(replace(fitted, samples=Samples(frame), provenance=made), 32)
    assert curve.workload == "natural routing of argparse.py"
    assert not curve.is_guess and guess.is_guess
    assert curve.union == pytest.approx([0.5 * u for u in guess.union], abs=1e-3)
    assert [each.batch for each in curve.by_batch] == [1, 2]


def test_a_failed_gate_stops_the_export(fitted, tmp_path):
    faster = replace(fitted.provenance, bandwidth_gbps=900.0)
    worse = replace(fitted, provenance=faster)
    with pytest.raises(MeasurementError, match="roofline slope"):
        export_table(worse, tmp_path)
    assert not list(tmp_path.iterdir())


def test_too_few_cells_are_refused(tmp_path):
    store = Store(tmp_path / "empty")
    store.create(write_run(tmp_path / "whole").header())
    with pytest.raises(DataError, match="a fit needs"):
        fit_run(store)


@pytest.mark.parametrize(("batch", "slope"), [(1, 0.25), (2, 0.25)])
def test_costs_are_read_at_the_measured_growth(saved_table, fitted, batch, slope):
    table = with_workload(CostTable.load(saved_table), ACCEPTANCE, ACTIVATION, DRAFTING)
    tokens = np.arange(float(batch), 17.0)
    union = 4.0 + slope * (tokens - 1.0)
    covered = fitted.cost.latency_us(tokens, union, 64, batch)
    stairs = table.costs(batch, 64)
    np.testing.assert_allclose(stairs.step_cost_us[batch:17], covered, atol=0.06)


def test_what_deciding_adds_outlasts_a_workload_s_clocks(saved_table):
    """A trace's clocks have none of it."""
    table = CostTable.load(saved_table)
    clock = DraftClock(2, (0.0, 1.0), 1.0, 1.0, mechanism_us=80.0)
    timed = replace(table, drafting=Drafting("none", "a test", (clock,)))
    for before, us in ((timed, 80.0), (table, None)):
        after = with_workload(before, ACCEPTANCE, ACTIVATION, DRAFTING).drafting
        found = [(each.batch, each.mechanism_us) for each in after.batches]
        assert found == [(1, us), (4, us)]


def test_intervals_keep_their_relative_width(saved_table):
    before = CostTable.load(saved_table)
    after = with_workload(before, ACCEPTANCE, ACTIVATION, DRAFTING)
    for old, new in zip(before.staircases, after.staircases, strict=True):
        for bound in ("low_us", "high_us"):
            one, other = (
                np.array(getattr(stairs, bound)) / stairs.step_cost_us
                for stairs in (old, new)
            )
            np.testing.assert_allclose(one, other, rtol=1e-4)


def test_the_same_growth_changes_no_cost(saved_table):
    """What a table says does not depend on how it came to say so."""
    table = CostTable.load(saved_table)
    again = with_workload(table, None, table.activation, None)
    for old, new in zip(table.staircases, again.staircases, strict=True):
        np.testing.assert_allclose(old.step_cost_us, new.step_cost_us, atol=0.11)


def test_the_next_version_stands_beside_with_its_samples(workload_table):
    """It holds all that was put in, and can be refitted alone."""
    table = CostTable.load(workload_table)
    assert (workload_table.stem, table.version) == ("1.0.1", "1.0.1")
    assert (table.acceptance, table.drafting) == (ACCEPTANCE, DRAFTING)
    assert table.activation == ACTIVATION
    samples = workload_table.with_suffix(".parquet")
    assert file_sha256(samples) == table.provenance.samples_sha256


def test_a_tree_of_tables_has_a_place_for_it(saved_table, tmp_path):
    table = CostTable.load(saved_table)
    made, path = export_workload(table, saved_table, tmp_path / "tables")
    assert path.relative_to(tmp_path / "tables") == made.relative_path
    assert path.with_suffix(".parquet").is_file()


def test_a_version_is_after_that_of_its_source_in_any_tree(saved_table, tmp_path):
    """No two tables of one key share a version; a newer one that is there counts."""
    table = replace(CostTable.load(saved_table), version="1.2.3")
    versions = [
        export_workload(each, saved_table, tmp_path / "tables")[1].stem
        for each in (table, replace(table, drafting=DRAFTING))
    ]
    assert versions == ["1.2.4", "1.2.5"]


def test_an_equal_table_is_loaded_and_not_written_again(workload_table):
    table = CostTable.load(workload_table)
    made, path = export_workload(replace(table, version="1.0.0"), workload_table)
    assert (made, path) == (table, workload_table)
    assert len(list(workload_table.parent.glob("*.json"))) == 2


def test_a_workload_needs_the_samples_of_its_table(saved_table):
    """A table without its samples would be the first that nobody can refit."""
    saved_table.with_suffix(".parquet").unlink()
    with pytest.raises(DataError, match=r"parquet: is missing"):
        export_workload(CostTable.load(saved_table), saved_table)


def test_a_curve_that_ends_too_early_is_refused(saved_table):
    short = ActivationCurve("short", False, (0.0, 4.0))
    with pytest.raises(DataError, match="ends at 1 tokens"):
        with_workload(CostTable.load(saved_table), None, short, None)


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    return fit_run(write_run(tmp_path_factory.mktemp("joined"), between=0.0))


def test_axes_and_staircases_are_at_the_levels_of_the_grid(joined):
    table = make_table(joined)
    assert len(joined.layer_points) > len(joined.level_cells)
    assert table.axes.width == SWEEP.grid.width
    assert table.axes.context == SWEEP.grid.context
    assert [len(s.step_cost_us) for s in table.staircases] == [17, 17, 33, 33]


def test_a_plan_is_as_wide_at_the_context_of_a_validation_cell(joined):
    """As at the contexts beside it, where every token is sure to be accepted."""
    truncator = Truncator(make_table(joined), drafts="topk", acceptance="target-only")
    for cell in joined.layer_points.index:
        near = range(max(cell.context - 1, 64), min(cell.context + 1, 256) + 1)
        plans = [truncator.plan(torch.ones(1, 15), context=c) for c in near]
        assert {plan.tokens for plan in plans} == {16}


def test_a_batch_ends_where_wider_cells_failed_at_one_of_its_contexts(fitted):
    """At all its contexts, and between them; the other batch covers all widths."""
    frame = fitted.frame.copy()
    wide = (frame["width"] == 16) & (frame["context"] == 256) & (frame["batch"] == 2)
    frame.loc[wide & (frame["part"] == "layers"), "status"] = "oom"
    table = make_table(replace(fitted, samples=Samples(frame)))
    assert [len(s.step_cost_us) for s in table.staircases] == [17, 17, 17, 17]
    assert len(table.step_cost_us(batch=2, context=100)) == 17
    assert table.fit.domain["width"] == (1, 16)


def test_natural_cells_may_be_wider_than_the_widest_forced_one(fitted):
    """Their share of the guess still shapes the curve up to there."""
    facts = {**fitted.provenance.fingerprint, "text": "argparse.py"}
    routed = replace(fitted, provenance=replace(fitted.provenance, fingerprint=facts))
    whole, short = (activation_of(routed, most).union for most in (32, 12))
    assert short == whole[:13]

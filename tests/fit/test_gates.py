"""Each gate passes what it should, and names the remedy when it does not."""

import json
import re

import numpy as np
import pytest

from evict_profile.cells import CELL_FIELDS
from evict_profile.fit import gates
from evict_profile.fit.fitted import fit_run
from evict_profile.fit.provenance import aa_floor
from evict_profile.records import replace
from evict_profile.stats import ErrorSummary
from evict_profile.sweep.latency import Change, Drift, Samples
from evict_profile.sweep.store import Store
from tests.factories import write_run

STILL = Change(0.001, 0.002, "over the run")


def test_a_good_run_passes_every_gate(fitted):
    judged = gates.judge(fitted)
    assert [gate.name for gate in judged if gate.passed] == [
        "union test",
        "roofline slope",
        "held-out error",
        "non-MoE held-out error",
        "non-MoE time",
        "half-width",
        "drift",
        "A/A floor",
        "coverage",
    ]


@pytest.mark.parametrize("bandwidth_gbps", [2.0, 100.0])
def test_an_impossible_slope_fails(fitted, bandwidth_gbps):
    """Faster than the memory, or far slower, is something else than expert weights.

    The load that was measured is named, and on a CPU the flag to try.
    """
    made = replace(fitted.provenance, bandwidth_gbps=bandwidth_gbps)
    met = {**made.union_test, "load": "9.3 processes ran on 2 cores"}
    facts = {**made.fingerprint, "device_kind": "cpu", "dtype": "bfloat16"}
    made = replace(made, union_test=met, fingerprint=facts)
    gate = gates.slope_gate(replace(fitted, provenance=made))
    assert not gate.passed
    assert "sweep anew; 9.3 processes ran on 2 cores; try --dtype" in gate.message


def test_the_slope_is_judged_by_its_95_percent_interval(fitted, monkeypatch):
    """Two standard errors to either side of the fit's slope."""
    us, _ = gates._slope_us(fitted)
    monkeypatch.setattr(gates, "_slope_us", lambda _: (us, 0.2 * us))
    copied = fitted.model.bytes_per_expert / fitted.provenance.bandwidth_gbps / 1e3
    least, most = copied / us / np.array([1.4, 0.6])
    said = gates.slope_gate(fitted).message
    assert f"(95 % interval {least:.2f}..{most:.2f})" in said


def test_a_rank_reads_its_share_of_an_expert(fitted):
    facts = {**fitted.provenance.fingerprint, "tp": 2}
    made = replace(fitted.provenance, fingerprint=facts)
    implied = [
        float(re.search(r"implies (\S+) of", gates.slope_gate(each).message)[1])
        for each in (fitted, replace(fitted, provenance=made))
    ]
    assert implied[1] == pytest.approx(implied[0] / 2, abs=0.01)


def test_a_large_held_out_error_fails():
    """Median 6 % is over the limit."""
    gate = gates.error_gate("held-out error", ErrorSummary(0.06, 0.1, 0.2, 30))
    assert not gate.passed
    assert "more samples" in gate.message


@pytest.mark.parametrize(
    ("trend", "stretches", "passed"),
    [
        (STILL, STILL, True),
        (Change(-0.051, 0.01, "over the run"), STILL, False),
        (Change(0.049, 0.01, "over the run"), STILL, True),
        (Change(0.073, 0.023, "over the run"), STILL, True),
        (STILL, Change(0.119, 0.01, "from 10% to 30% of it"), True),
        (STILL, Change(0.121, 0.01, "from 10% to 30% of it"), False),
    ],
)
def test_a_change_surely_beyond_its_bound_fails(trend, stretches, passed):
    """Up or down, with its whole printed interval."""
    gate = gates.drift_gate(Drift(trend, stretches))
    assert gate.passed == passed
    assert ("run the same command with another --out" in gate.message) != passed


def test_a_refused_drift_says_only_what_was_refused():
    """With its bound; what passed is no reason."""
    found = Change(-0.09, 0.01, "over the run")
    message = gates.drift_gate(Drift(found, STILL), left_out=0.02).message
    assert message.startswith("-9.0% +- 2.0% over the run (bound 3%); the machine")


def test_sessions_may_differ_as_far_as_costs_stay_known():
    """To 5 %, beyond which a table would say little."""
    far, near = (gates.drift_gate(Drift(STILL, None, r)) for r in (0.06, 0.04))
    assert near.passed
    assert not far.passed
    assert "sessions leave 6.0% to costs" in far.message


@pytest.mark.parametrize("unit", [1e3, 1e-3])
def test_a_wrong_unit_of_the_rest_of_a_model_fails(tmp_path, unit):
    """In ns for us a forward costs many times as much; in ms a little less."""
    store = write_run(tmp_path / "run")
    frame = store.frame()
    own = frame["part"] == "non_moe"
    frame.loc[own, "clock_us"] *= unit
    for number, samples in frame.groupby("round"):
        store.add(samples, int(number), 0)
    judged = gates.judge(fit_run(store))
    failed = {gate.name: gate.message for gate in judged if not gate.passed}
    assert "check the unit of the" in failed["non-MoE time"]


def test_the_rest_of_a_model_is_judged_by_cells_held_out_from_it(fitted):
    """Its error over a whole forward: a rest that no line holds is no table."""
    cells = fitted.frame.groupby(list(CELL_FIELDS)).ngroup()
    wild = np.random.default_rng(0).choice([1.0, 30.0], cells.max() + 1)[cells]
    slower = np.where(fitted.frame["part"] == "non_moe", wild, 1.0)
    frame = fitted.frame.assign(clock_us=fitted.frame["clock_us"] * slower)
    judged = gates.judge(replace(fitted, samples=Samples(frame)))
    assert "non-MoE held-out error" in [g.name for g in judged if not g.passed]


@pytest.mark.parametrize(("left_out", "passed"), [(0.43, False), (0.40, True)])
def test_a_sweep_that_was_of_another_speed_half_of_the_time_fails(left_out, passed):
    assert gates.drift_gate(Drift(STILL), left_out).passed == passed


@pytest.mark.parametrize(
    ("low", "high", "passed"), [(-0.6, 0.7, False), (-0.05, 0.07, True)]
)
def test_costs_that_are_hardly_known_make_no_table(fitted, low, high, passed):
    """A scaling test of +1 % that may as well have missed by 70 % is no good test."""
    test = {"error": 0.01, "error_low": low, "error_high": high}
    made = replace(fitted.provenance, scaling_test=test)
    judged = {g.name: g for g in gates.judge(replace(fitted, provenance=made))}
    assert judged["half-width"].passed == passed
    assert all(gate.passed for gate in judged.values()) == passed


@pytest.mark.parametrize(("error", "passed"), [(-0.11, False), (-0.076, True)])
def test_layers_that_scale_badly_make_no_table(fitted, error, passed):
    """Beyond 10 %; up to there the intervals of costs hold the error."""
    test = {"error": error, "error_low": error - 0.01, "error_high": error + 0.01}
    made = replace(fitted.provenance, scaling_test=test)
    judged = gates.judge(replace(fitted, provenance=made))
    gate = next(each for each in judged if each.name == "layer scaling")
    assert gate.passed == passed
    assert f"missed by {error:+.1%}" in gate.message
    assert ("measure more layers" in gate.message) != passed


def test_samples_that_repeat_each_other_fail():
    assert not gates.aa_gate(0.0, asked=0.03).passed
    others = {cell: [1.0, 1.1, 1.2, 1.05] for cell in range(5)}
    copies = {**others, **{cell: [1.0] * 4 for cell in range(2, 8)}}
    assert (aa_floor([*others.values()]) > 0.0, aa_floor([*copies.values()])) == (
        True,
        0.0,
    )


def test_a_wide_floor_is_told():
    """It fails nothing, so something is to be done only where costs say so."""
    wide, usual = (gates.aa_gate(floor, asked=0.03) for floor in (0.4, 0.06))
    assert wide.passed
    assert "far above the 3.0% asked" in wide.message
    assert "only where the intervals of costs" in wide.message
    assert "asked" not in usual.message


def test_failed_cells_fail_the_coverage(fitted):
    """With a fifth of the cells out of memory there is no table."""
    frame = fitted.frame.copy()
    frame.loc[frame["width"] == 16, "status"] = "oom"
    gate = gates.coverage_gate(frame, fitted.points, whole=False)
    assert not gate.passed
    assert "sweep anew" in gate.message


def test_parts_are_due_as_the_sweep_measures_them(fitted):
    """Layers without the rest cover a model only where they are whole forwards."""
    layers, frame = fitted.layer_points, fitted.frame
    assert gates.coverage_gate(frame, layers, whole=True).passed
    gate = gates.coverage_gate(frame, layers, whole=False)
    assert not gate.passed
    assert "none of the non_moe; run the same sweep again" in gate.message


def test_a_union_that_costs_nothing_fails(fitted):
    """Also where an earlier runner said that it had proved its forcing."""
    for said in ({}, {"proved_routing": True}):
        test = {**fitted.provenance.union_test, "differ": False, **said}
        made = replace(fitted.provenance, union_test=test)
        gate = gates.union_gate(replace(fitted, provenance=made))
        assert not gate.passed
        assert "cost the same; time does not follow the union" in gate.message


def test_a_run_whose_plan_has_a_section_for_llama_cpp_is_fitted(tmp_path):
    header = write_run(tmp_path).header_path
    content = json.loads(header.read_text())
    content["sweep"] |= {"runner": "llama_cpp", "llama": {"threads": 8}}
    header.write_text(json.dumps(content))
    fitted = fit_run(Store(tmp_path))
    assert fitted.provenance.sweep.runner == "llama_cpp"
    same = fit_run(write_run(tmp_path / "same"))
    assert gates.judge(fitted) == gates.judge(same)

"""A report from a table alone."""

import numpy as np
import pytest

from evict_profile.cells import with_latency
from evict_profile.cost_model import design, features_at
from evict_profile.errors import DataError
from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import fit_run, fitted_of_table
from evict_profile.fit.gates import drift_gate, judge
from evict_profile.fit.hinge import Uncertainty, parts_of
from evict_profile.fit.provenance import scaling_half_width
from evict_profile.records import replace
from evict_profile.report.cost_page import cost_page
from evict_profile.report.data import View
from evict_profile.sweep import latency
from evict_profile.sweep.latency import Samples
from evict_profile.table import DATASHEET, Sessions
from tests.factories import part_us, write_run
from tests.shipped import tracked


def test_cost_is_the_tables_own(saved_table, fitted):
    rebuilt, _ = fitted_of_table(saved_table)
    ours, theirs = (part_us(f.cost, fitted.points.index) for f in (rebuilt, fitted))
    np.testing.assert_array_equal(ours, theirs)


def test_anchor_and_gates_are_found_again(saved_table, fitted):
    """The sweep in the table is enough to know the anchor and judge anew."""
    rebuilt, table = fitted_of_table(saved_table)
    assert rebuilt.anchor == fitted.anchor
    assert judge(rebuilt) == table.gates


def test_page_is_that_of_the_run(saved_table, fitted):
    """A table alone tells all that the run's folder tells."""
    rebuilt, table = fitted_of_table(saved_table)
    assert cost_page(View(rebuilt, table)) == cost_page(View(fitted, table))


def test_missing_samples_are_refused(saved_table):
    saved_table.with_suffix(".parquet").unlink()
    with pytest.raises(DataError, match=r"1\.0\.0\.parquet: is missing.*put the"):
        fitted_of_table(saved_table)


def test_changed_samples_are_refused(saved_table, fitted):
    """Samples of another run are not drawn under this table's name."""
    samples = saved_table.with_suffix(".parquet")
    fitted.frame.iloc[:-1].to_parquet(samples, index=False)
    with pytest.raises(DataError, match=r"1\.0\.0\.parquet: .*sha256.*fetch"):
        fitted_of_table(saved_table)


def test_samples_of_shipped_tables_are_read():
    """One of two layers, whose sweep had no validation cells, and two small worlds.

    That of the EPYC was drawn by an older rule, and names its validation cells.
    """
    rests = []
    for path in (
        *tracked("cost_tables/*/torch-moe/*.json"),
        *tracked("examples/small_world/cost_tables/*.json"),
    ):
        fitted, table = fitted_of_table(path)
        assert len(fitted.points) == table.provenance.cells
        rests.append(len(parts_of(fitted.points)[1]))
    assert rests == [7, 20, 20]


def test_slow_times_are_sought_once_a_run(tmp_path, monkeypatch):
    """For points, provenance, gates and what is left out."""
    sought, find = [], latency.slow_blocks
    monkeypatch.setattr(latency, "slow_blocks", lambda t: sought.append(t) or find(t))
    fitted = fit_run(write_run(tmp_path))
    make_table(fitted)
    assert fitted.samples.dropped_share == 0.0 and fitted.samples.drift
    assert len(sought) == 1


def test_latencies_are_at_the_reference_that_the_table_states(fitted):
    """Also of samples that stay where others are left out, whose reference was slow."""
    slow = np.zeros(len(fitted.frame))
    slow[80:160] = 1.0
    reference_us = np.random.default_rng(0).normal(100.0, 3.0, len(slow)) + 5.0 * slow
    clock_us = fitted.frame["clock_us"] * (1.0 + slow) * reference_us
    frame = fitted.frame.assign(clock_us=clock_us, reference_us=reference_us)
    disturbed = replace(fitted, samples=Samples(frame))
    kept = [us for own in disturbed.samples.cells["samples_us"] for us in own]
    assert disturbed.samples.dropped_share > 0.0
    assert set(kept) <= set(with_latency(frame)["latency_us"])


def test_sessions_that_differ_leave_an_error_to_all_costs(fitted):
    """Six that differ by 3 %, beside what counts as two that differ by 0.7 %."""
    session = fitted.frame["round"].to_numpy() % 6
    apart = 0.03 * np.array([-1.2, -0.7, -0.2, 0.2, 0.7, 1.2])
    slower = np.exp(apart)[session]
    frame = fitted.frame.assign(
        session=session.astype(str), clock_us=fitted.frame["clock_us"] * slower
    )
    six = replace(fitted, samples=Samples(frame))
    variance = (2.0 * 0.007**2 + 5.0 * apart.var(ddof=1)) / 7.0
    half_width = six.samples.drift.half_width
    assert half_width == pytest.approx(2.365 * (variance / 6.0) ** 0.5, rel=0.1)
    made = replace(fitted.provenance, sessions=Sessions(6, half_width))
    assert replace(fitted, provenance=made).misfit >= half_width / 2.0


def test_a_cost_is_off_by_the_noise_of_both_parts_and_by_the_misfit(fitted):
    """They add as squares; layers are scaled by two, and so is their noise."""
    place = [np.array([value]) for value in (8.0, 6.0, 64.0, 1.0)]
    cost_us, _, high_us = fitted.costs_at(*place)
    features = features_at(fitted.cost.shape, *place)
    layers_us, rest_us = (
        Uncertainty(part, fitted.cost.shape, points).us(design(part.terms, features))
        for part, points in zip(
            (fitted.cost.layers, fitted.cost.non_moe),
            parts_of(fitted.points),
            strict=True,
        )
    )
    noise_us = np.hypot(2.0 * layers_us, rest_us)
    assert min(layers_us, rest_us) > 0.0
    half_us = 2.0 * np.hypot(noise_us, fitted.misfit * cost_us)
    assert high_us - cost_us == pytest.approx(half_us)


def test_scaled_layers_leave_an_error_to_all_costs(fitted):
    """Half of what the test found at worst, where costs are scaled by two."""
    test = {"error": -0.05, "error_low": -0.08, "error_high": 0.01}
    made = replace(fitted.provenance, scaling_test=test)
    tested = replace(fitted, provenance=made)
    place = [np.array([value]) for value in (8.0, 6.0, 64.0, 1.0)]
    cost_us, _, high_us = tested.costs_at(*place)
    alone_us = fitted.costs_at(*place)[2] - cost_us
    assert fitted.cost.layer_scale == 2.0
    assert high_us - cost_us == pytest.approx(np.hypot(alone_us, 0.04 * cost_us))


def test_layers_that_are_not_scaled_leave_none():
    """Whatever a test of fewer would have found; nor where none was run."""
    test = {"error_low": -0.08, "error_high": 0.01}
    assert scaling_half_width(test, 1.0) == scaling_half_width(None, 24.0) == 0.0


def test_one_layer_alone_leaves_more_than_a_good_test_of_two(fitted):
    """Knowing less widens an interval; a datasheet's layers scale exactly."""
    facts = {**fitted.provenance.fingerprint, "layers": 1}
    one = replace(fitted.provenance, fingerprint=facts)
    test = {"error_low": -0.01, "error_high": 0.01}
    two = replace(fitted.provenance, scaling_test=test)
    promised = replace(one, clock=DATASHEET)
    alone, tested, exact = (
        replace(fitted, provenance=made).shared_half_width
        for made in (one, two, promised)
    )
    assert alone > 0.05 > tested > exact == fitted.shared_half_width


def test_one_session_is_taken_to_be_within_three_per_cent(fitted):
    """The table says so, and every cost's interval includes it."""
    assert fitted.provenance.sessions.half_width == pytest.approx(0.03, rel=0.01)
    table = make_table(fitted)
    assert "3.0% is assumed" in str(table.provenance.sessions)
    assert fitted.half_width >= 0.03


def test_times_of_another_speed_are_in_no_fit(fitted):
    """Nor do they leave a trace in the medians; the gate of drift tells their share."""
    slow = np.zeros(len(fitted.frame))
    slow[80:160] = 1.0
    frame = fitted.frame.assign(clock_us=fitted.frame["clock_us"] * (1.0 + slow))
    disturbed = replace(fitted, samples=Samples(frame))
    assert disturbed.samples.dropped_share == pytest.approx(slow.mean(), rel=0.2)
    assert fitted.samples.dropped_share == 0.0
    medians = (each.points["latency_us"] for each in (disturbed, fitted))
    np.testing.assert_allclose(*medians, rtol=0.02)
    gate = drift_gate(disturbed.samples.drift, left_out=disturbed.samples.dropped_share)
    share = f"{disturbed.samples.dropped_share:.0%} of the samples, of another speed"
    assert share in gate.message

"""Files of a run that hold what cannot be end in one sentence, or lose samples."""

import json
import math
import shutil

import pandas as pd
import pytest

from evict_profile.errors import DataError, MeasurementError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import fit_run
from evict_profile.sweep.store import Store
from tests.factories import write_run

SCALING = {
    "small_layers": 1,
    "large_layers": 2,
    "small_us": 1.0,
    "large_us": 2.0,
    "error": 0.01,
    "error_low": 0.0,
    "error_high": 0.02,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("odd") / "run", repeats=4)


@pytest.fixture
def run(written, tmp_path):
    shutil.copytree(written.folder, tmp_path / "run")
    return Store(tmp_path / "run")


def without(mapping, key):
    return {name: value for name, value in mapping.items() if name != key}


def edit_header(run, owner, value):
    header = json.loads(run.header_path.read_text())
    old = header[owner] or {}
    header[owner] = value(old) if callable(value) else {**old, **value}
    run.header_path.write_text(json.dumps(header))


@pytest.mark.parametrize(
    ("owner", "value", "named"),
    [
        ("opened", {"bandwidth_gbps": 0}, "bandwidth_gbps"),
        ("opened", {"bandwidth_gbps": "fast"}, "bandwidth_gbps"),
        ("opened", {"capture_sizes": "1 2"}, "capture_sizes"),
        ("opened", {"capture_sizes": ["1"]}, "capture_sizes"),
        ("opened", {"capture_sizes": [0, 1]}, "capture_sizes"),
        ("fingerprint", {"layers": 0}, "layers"),
        ("fingerprint", {"layers": "two"}, "layers"),
        ("fingerprint", lambda old: without(old, "layers"), "layers"),
        ("union_test", lambda _: {}, "union_test"),
        ("union_test", {"width": None}, "union_test"),
        *(
            ("scaling_test", lambda _, key=key: without(SCALING, key), key)
            for key in ("error", "error_low", "error_high")
        ),
        ("scaling_test", {**SCALING, "error_high": math.inf}, "error_high"),
        ("scaling_test", {**SCALING, "error": "small"}, "error"),
    ],
)
def test_a_header_that_cannot_be_is_one_sentence(run, owner, value, named):
    edit_header(run, owner, value)
    with pytest.raises(DataError, match=rf"sweep\.json: .*{named}.*sweep anew"):
        export_table(fit_run(run), run.folder / "tables")


def test_captured_sizes_may_stand_in_any_order(run):
    edit_header(run, "opened", {"capture_sizes": [16, 1, 4, 2, 8]})
    table, _ = export_table(fit_run(run), run.folder / "tables")
    assert table.axes.capture_sizes == (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("scaling", "passed"),
    [({"error": 1e-300}, True), ({"error_low": -0.6, "error_high": 0.7}, False)],
)
def test_a_scaling_test_is_as_good_as_its_interval(run, scaling, passed):
    edit_header(run, "scaling_test", {**SCALING, **scaling})
    if passed:
        export_table(fit_run(run), run.folder / "tables")
        return
    with pytest.raises(MeasurementError, match="half-width"):
        export_table(fit_run(run), run.folder / "tables")


def rewrite(run, frame):
    """Samples as parts of their own rounds, whatever types their columns have."""
    for path in run.parts.glob("*"):
        path.unlink()
    for number, part in frame.groupby("round"):
        own = part.infer_objects()
        own.to_parquet(run.part(f"{number:05d}-00"), index=False)


@pytest.mark.parametrize("column", ["status", "clock_us", "width"])
def test_samples_without_a_column_are_one_sentence(run, column):
    frame = run.frame()
    for path in run.parts.glob("*"):
        path.unlink()
    frame.drop(columns=column).to_parquet(run.part("00001-00"), index=False)
    with pytest.raises(DataError, match=f"samples lack {column}; put whole"):
        export_table(fit_run(run), run.folder / "tables")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("observed_union", wrong) for wrong in (None, "text", 1000.0, -3.0)),
        ("clock_us", "text"),
        ("at_unix", 1e15),
        ("part", "attention"),
        ("split", "odd"),
    ],
)
def test_samples_that_cannot_be_change_no_cost(run, column, value):
    """All natural cells of a round, in a column of whatever type that makes it."""
    frame = run.frame()
    odd = (frame["round"] == 2) & (frame["split"] == "natural")
    odd &= frame["part"] == "layers"
    expected = export_table(fit_run(run), run.folder / "right")[0]
    frame[column] = frame[column].astype(object)
    if value == "text":
        frame.loc[frame["round"] == 2, column] = (
            frame.loc[frame["round"] == 2, column].astype(str).where(~odd, value)
        )
    frame.loc[odd, column] = value
    rewrite(run, frame)
    table = export_table(fit_run(run), run.folder / "tables")[0]
    assert table.provenance.samples == expected.provenance.samples - odd.sum()
    costs = [pd.Series(t.staircases[0].step_cost_us) for t in (table, expected)]
    assert (costs[0] / costs[1] - 1.0).abs().max() < 0.002


def test_a_run_of_samples_left_out_says_why(run):
    rewrite(run, run.frame().assign(status="mismatch", reason="asked for another"))
    with pytest.raises(DataError, match=r"0 forced .* left out: asked for another\)"):
        export_table(fit_run(run), run.folder / "tables")

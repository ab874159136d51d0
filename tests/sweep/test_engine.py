"""A sweep measures every cell, survives what goes wrong, and resumes exactly."""

import os
import signal
import threading
import time
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from rich.console import Console

from evict_profile import runner
from evict_profile.cells import (
    CELL_FIELDS,
    OK,
    Cell,
    Reading,
    Sample,
    cell_of,
    cells_of,
)
from evict_profile.deadline import Deadline, interruptible
from evict_profile.errors import DataError, Interrupted, MeasurementError
from evict_profile.io import sole_writer
from evict_profile.records import replace
from evict_profile.sweep import engine, machine
from evict_profile.sweep.engine import is_finished, judged, run_sweep
from evict_profile.sweep.plan import GridPlan
from tests.sweep.conftest import comparable

BAD = Cell("layers", 4, 16, 64, 2, "balanced")
FAILING = {
    BAD: ("SCRIPTED_OOM", "oom", "CUDA out of memory, said the script"),
    replace(BAD, batch=1): ("SCRIPTED_CRASH", "crashed", "ended with status 7"),
    replace(BAD, width=8, batch=1): ("SCRIPTED_WRONG", "mismatch", "ran 17..17"),
    replace(BAD, width=2, union=8): ("SCRIPTED_NARROW", "mismatch", "n=2, ran 1"),
    replace(BAD, union=8): ("SCRIPTED_EARLY", "mismatch", "no work takes"),
    replace(BAD, width=8, union=8, batch=1): (
        "SCRIPTED_MS",
        "mismatch",
        "is not the time of",
    ),
}
"""What goes wrong where, and how it is recorded."""

Env = pytest.MonkeyPatch
KEYS = ["round", "seed", *CELL_FIELDS]


def place_of(cell):
    return f"width={cell.width} union={cell.union} batch={cell.batch}"


def of(frame, cell):
    return frame[[cell_of(row) == cell for row in frame.itertuples()]]


def without(frame, *cells):
    """The rows of all other cells, whatever their order in the round."""
    others = frame.drop(pd.concat([of(frame, cell) for cell in cells]).index)
    rest = comparable(others.drop(columns="order"))
    return rest.sort_values(KEYS, ignore_index=True)


def still_open(frame, grid, spec):
    """Cells that were not measured to their end, and have not failed."""
    return list(GridPlan(grid, spec.stop).samples_due(frame))


def test_every_cell_is_measured_to_its_end(whole, grid, spec):
    """Each has met the stop rule, none but the anchor was measured beyond it."""
    timed = whole[whole["round"] > 0]
    assert still_open(timed, grid, spec) == []
    for number, samples in timed.groupby("round"):
        due = set(still_open(timed[timed["round"] < number], grid, spec))
        assert set(cells_of(samples)) == due | {grid.anchor}


def test_infeasible_cells_are_recorded(whole, grid):
    """In round 0, with their reason; a sweep that goes on records them no second time,
    for it equals this one."""
    refused = whole[whole["status"] == "infeasible"]
    recorded = zip(map(cell_of, refused.itertuples()), refused["reason"], strict=True)
    assert tuple(recorded) == grid.infeasible
    assert set(refused["round"]) == {0}


def test_several_samples_a_round(store, sweep, grid, spec):
    """Each repeat has a seed of its own and shares its place in the round."""
    assert sweep(store, samples_per_round=3)
    frame = store.frame()
    first = of(frame[frame["round"] == 1], grid.anchor)
    assert len(first) == first["seed"].nunique() == 3
    assert first["order"].nunique() == 1
    assert still_open(frame, grid, spec) == []


def test_first_rounds_may_have_sessions_of_their_own(store, sweep, whole):
    """Each is a session; what is measured stays the same, also when cut short."""
    assert not sweep(store, sessions=3, checks=70)
    assert sweep(store, sessions=3)
    frame = store.frame()
    assert_frame_equal(comparable(frame), comparable(whole))
    by_round = frame[frame["round"] > 0].groupby("round")["session"]
    sessions = [set(names) for _, names in by_round]
    assert len(set.union(*sessions[:3])) >= 3
    assert sessions[0].isdisjoint(sessions[1]) and sessions[1] != sessions[2]
    assert len(set.union(*sessions[2:])) <= 2


def test_a_sweep_has_as_many_sessions_as_it_asks_for(store, sweep):
    assert sweep(store, sessions=3)
    assert set(store.frame()["session"]) - {""} == {"#1", "#2", "#3"}


@pytest.mark.parametrize("reference_us", [0.0, -1.0])
def test_a_reference_work_that_took_no_time_is_a_mismatch(reference_us):
    """The latency is a ratio to it; a runner without one answers NaN."""
    ran = Reading(9.0, reference_us, 4, 16.0, 16, 16, at_unix=time.time())
    sample = Sample(BAD, 1, 0, 0, ran)
    assert judged(sample).status == "mismatch"
    without = replace(ran, reference_us=float("nan"))
    assert judged(replace(sample, reading=without)).status == OK


@pytest.mark.parametrize("off_s", [-1e6, 1e6, float("nan"), float("inf")])
def test_a_moment_that_is_not_of_today_is_a_mismatch(off_s):
    ran = Reading(9.0, float("nan"), 4, 16.0, 16, 16, at_unix=time.time())
    sample = Sample(BAD, 1, 0, 0, ran)
    assert judged(sample).status == OK
    late = replace(ran, at_unix=time.time() + off_s)
    assert judged(replace(sample, reading=late)).status == "mismatch"


def test_a_failure_costs_one_cell(store, sweep, grid, spec, monkeypatch):
    """Recorded with its reason, without a latency, and not tried again.

    What a runner refused is said when it happens: a hole in a table is no surprise.
    """
    for cell, (variable, _, _) in FAILING.items():
        monkeypatch.setenv(variable, place_of(cell))
    said = StringIO()
    assert sweep(store, console=Console(file=said, width=300))
    frame = store.frame()
    for cell, (_, status, reason) in FAILING.items():
        rows = of(frame, cell)
        assert rows["status"].tolist() == [status]
        assert reason in rows["reason"].iloc[0]
        refused = f"{cell}: {reason}; recorded as {status}"
        assert (refused in said.getvalue()) == (status == "oom")
    assert still_open(frame, grid, spec) == []


@pytest.mark.parametrize(("processes", "warned"), [(1.0, True), (0.9, False)])
def test_other_load_is_told_before_anything_is_measured(
    store, sweep, monkeypatch, processes, warned
):
    """On a CPU, where it slows what is measured; once, by the measure of `doctor`."""
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (processes, 0.0, 0.0))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    said = StringIO()
    sweep(store, checks=0, console=Console(file=said, width=300))
    before, _, after = said.getvalue().partition("union test passed")
    assert ("1.0 processes run on 2 cores: stop them" in before) == warned
    assert "processes run on" not in after
    assert "30 cells of 6 to 12 samples in 1 session; the first round" in before


def test_a_cell_that_fails_later_is_closed_for_good(store, sweep, monkeypatch):
    sweep(store, checks=60)
    monkeypatch.setenv("SCRIPTED_OOM", place_of(BAD))
    assert sweep(store, checks=350)
    *before, last = of(store.frame(), BAD)["status"]
    assert before and set(before) == {OK}
    assert last == "oom"


def test_a_crash_opens_a_session_and_moves_no_other_sample(
    store, sweep, whole, monkeypatch
):
    """So does going on later; other cells have the samples they would have had."""
    monkeypatch.setenv("SCRIPTED_CRASH", place_of(BAD))
    sweep(store, checks=60)
    sweep(store)
    frame = store.frame()
    assert frame[frame["round"] > 0]["session"].is_monotonic_increasing
    assert set(frame["session"]) - {""} == {"#1", "#2", "#3"}
    ok = (f[(f["status"] == OK) & (f["clock_us"] > 0)] for f in (frame, whole))
    assert_frame_equal(*(without(frame, BAD) for frame in ok))


def test_three_crashes_end_the_sweep_and_keep_finished_rounds(
    store, sweep, whole, monkeypatch
):
    """The message has the cause; when it is fixed, all is as if nothing had been."""
    sweep(store, checks=60)
    before = store.frame()
    assert before["round"].max() >= 2
    with monkeypatch.context() as broken:
        broken.setenv("SCRIPTED_CRASH", "batch=2")
        ended = r"ended 3 times.*status 7.*rounds are kept"
        with pytest.raises(MeasurementError, match=ended):
            sweep(store)
    assert set(before["seed"]) <= set(store.frame()["seed"])
    assert sweep(store)
    assert_frame_equal(comparable(store.frame()), comparable(whole))


class WhenHung(Deadline):
    """A deadline that is reached as the runner hangs."""

    def seconds_left(self):
        hung = "hangs" in Path(os.environ["RUNNER_JOURNAL"]).read_text()
        return min(super().seconds_left(), -60.0 if hung else 60.0)


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """The scripted runner hangs at a cell, and nobody waits for it long."""
    journal = tmp_path / "journal"
    journal.touch()
    monkeypatch.setattr(runner, "EXIT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(runner, "ANSWER_TIMEOUT_S", 30.0)
    monkeypatch.setenv("RUNNER_JOURNAL", str(journal))
    monkeypatch.setenv("SCRIPTED_HANG", place_of(BAD))
    return journal


def assert_loses_nothing(store, sweep, whole, monkeypatch):
    """What was measured is stored, and the sweep goes on where it stopped."""
    stored = store.frame()
    assert (stored["status"] == OK).any() and not len(of(stored, BAD))
    monkeypatch.delenv("SCRIPTED_HANG")
    assert sweep(store)
    assert_frame_equal(comparable(store.frame()), comparable(whole))


def test_a_runner_that_hangs_ends_with_the_minutes(
    store, spec, model, sweep, whole, hanging, monkeypatch
):
    said = StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "Deadline", WhenHung)
        console = Console(file=said, width=300)
        assert not run_sweep(spec, model, store, console=console)
    assert "s after the sweep was to stop it had not answered" in said.getvalue()
    assert_loses_nothing(store, sweep, whole, monkeypatch)


def test_a_runner_that_hangs_ends_with_the_first_ctrl_c(
    store, spec, model, sweep, whole, hanging, monkeypatch
):
    def interrupt():
        while "hangs" not in hanging.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=interrupt, daemon=True)
    user.start()
    with pytest.raises(Interrupted, match="the same command continues it"):
        run_sweep(spec, model, store, console=Console(quiet=True))
    assert_loses_nothing(store, sweep, whole, monkeypatch)


def test_a_runner_that_comes_back_different_ends_the_sweep(open_session, monkeypatch):
    """After a crash, samples of another device must not join the run."""
    with open_session() as session:
        session.restart()
        monkeypatch.setenv("SCRIPTED_DEVICE", "stone")
        with pytest.raises(MeasurementError, match="device: stone here, paper there"):
            session.restart()


def test_a_deadline_keeps_the_samples_of_its_round(store, sweep, whole):
    assert not sweep(store, checks=11)
    measured = store.frame()[store.frame()["round"] > 0].reset_index(drop=True)
    expected = whole[whole["round"] > 0].reset_index(drop=True)
    assert len(measured) == 10
    assert_frame_equal(comparable(measured), comparable(expected[:10]))


@pytest.mark.parametrize("checks", [1, 17, 100, 200])
def test_a_resumed_sweep_equals_the_uninterrupted(checks, store, sweep, whole):
    assert not sweep(store, checks=checks)
    assert sweep(store)
    assert_frame_equal(comparable(store.frame()), comparable(whole))


@pytest.mark.parametrize(
    ("checks", "finished"), [(17, False), (150, False), (1e9, True)]
)
def test_samples_alone_say_whether_a_sweep_is_finished(store, sweep, checks, finished):
    """Without opening a runner; a finished one measures nothing more."""
    assert not is_finished(store)
    assert sweep(store, checks=checks) is finished
    assert is_finished(store) is finished
    if finished:
        before = store.frame()
        assert sweep(store)
        assert_frame_equal(store.frame(), before)


def test_another_device_is_refused_on_resume(store, sweep, monkeypatch):
    """Samples of two machines are not mixed, and the stored ones stay."""
    sweep(store, checks=20)
    before = store.frame()
    monkeypatch.setenv("SCRIPTED_DEVICE", "stone")
    with pytest.raises(DataError, match="device: stone here, paper there"):
        sweep(store)
    assert_frame_equal(store.frame(), before)


def test_two_processes_do_not_share_a_folder(store, sweep):
    sweep(store, checks=20)
    before = store.frame()
    with (
        sole_writer(store.folder),
        pytest.raises(DataError, match="another process is writing"),
    ):
        sweep(store)
    assert_frame_equal(store.frame(), before)


def test_a_runner_that_fails_the_union_test_leaves_no_run(store, sweep, monkeypatch):
    monkeypatch.setenv("SCRIPTED_SLOPE", "0")
    with pytest.raises(MeasurementError, match="union test failed"):
        sweep(store)
    assert not store.exists()


def test_the_first_ctrl_c_lets_the_sample_in_flight_finish(capfd):
    """It sets the deadline and says so; the second one ends the process as usual."""
    with interruptible(Deadline()) as deadline:
        assert not deadline.reached()
        signal.raise_signal(signal.SIGINT)
        assert deadline.reached()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert "Ctrl-C again stops now" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_stays_ignored_where_it_was():
    """A shell starts jobs in the background so: its Ctrl-C is for others."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible(Deadline()) as deadline:
            signal.raise_signal(signal.SIGINT)
            assert not deadline.reached()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

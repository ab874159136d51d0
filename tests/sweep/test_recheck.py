"""A table is compared with its own machine and engine, and with no other."""

import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from evict_profile.cells import Cell, Reading
from evict_profile.errors import DataError, MeasurementError
from evict_profile.records import replace
from evict_profile.sweep import recheck
from evict_profile.sweep.recheck import (
    RECHECK_CELLS,
    RECHECK_SESSIONS,
    Recheck,
    check_same_machine,
    median_half_width,
    recheck_cells,
)
from evict_profile.table import CostTable
from tests.factories import EXPERT_US, LAYERS, REFERENCE_US, known_us

QUIET = Console(quiet=True)
Rechecking = Callable[..., Recheck]


@pytest.fixture
def recheck_with(fitted, saved_table, tmp_path, monkeypatch):
    """Rechecks `saved_table` over a runner of the table's own facts, changed."""

    def run(runner, reference_us=None, **facts):
        table = CostTable.load(saved_table)
        own = {**table.provenance.fingerprint, **facts}
        spec = table.provenance.sweep
        session = SimpleNamespace(facts=own, runner=runner, spec=spec)

        @contextmanager
        def opened(*_):
            with runner or nullcontext():
                yield session

        monkeypatch.setattr(recheck, "OpenRunner", opened)
        made = replace(table.provenance, reference_us=reference_us)
        log = tmp_path / "runner.log"
        return recheck_cells(
            replace(table, provenance=made), fitted.frame, log, None, QUIET
        )

    return run


def test_another_machine_is_refused_before_a_cell_is_measured(recheck_with):
    """By what differs, with the command that measures this one."""
    said = r"device: another here.*evict-profile sweep"
    with pytest.raises(DataError, match=said):
        recheck_with(None, device="another")


def test_a_log_that_will_be_gone_is_not_named(fitted, saved_table, tmp_path):
    table, log = CostTable.load(saved_table), tmp_path / "runner.log"
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho its last words >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(MeasurementError) as caught:
        recheck_cells(table, fitted.frame, log, str(python), QUIET)
    assert str(caught.value) == "the runner ended with status 3: its last words"


class KnownRunner:
    """Answers with the cost that the table was measured from, times a factor."""

    def __init__(
        self, expert=1.0, reference_us=REFERENCE_US, more_experts=0, cold=0, fails=0
    ):
        """The first `cold` samples of a session are a tenth faster; the last `fails`
        of the second session are of other work. The anchor is a further cell."""
        self.expert, self.rng = expert, np.random.default_rng(0)
        self.reference_us, self.more_experts = reference_us, more_experts
        self.cold, self.fails, self.session, self.done = cold, fails, -1, 0
        self.asked: list[tuple[Cell, int]] = []

    def __enter__(self):
        self.session, self.done = self.session + 1, 0
        return self

    def __exit__(self, *_):
        pass

    def measure(self, cell, seeds):
        self.asked.append((cell, *seeds))
        more_us = LAYERS * EXPERT_US * (self.expert - 1.0) * cell.union
        noise = 1.0 + 0.005 * self.rng.standard_normal()
        noise *= 0.9 if self.done < self.cold else 1.0
        self.done += 1
        speed = self.reference_us / REFERENCE_US
        clock_us = speed * noise * (known_us(cell, cell.union) + more_us)
        last = 2 * (RECHECK_CELLS + 1)
        failed = self.session == 1 and last - self.fails < self.done <= last
        ran = cell.union + self.more_experts + failed
        ran_as = cell.width, float(ran), ran, ran
        return [Reading(clock_us, self.reference_us, *ran_as, at_unix=time.time())]


@pytest.mark.parametrize(
    ("expert", "said"), [(1.0, "same, all cells by"), (1.2, "drifted, all cells by +")]
)
def test_all_cells_and_sessions_decide(recheck_with, saved_table, expert, said):
    """Each session measures every chosen cell once, with seeds of its own.

    That the runner was edited since does not matter: whether it still measures the
    same is a fair question.
    """
    runner = KnownRunner(expert)
    found = recheck_with(runner, runner_sha256="edited")
    sessions = CostTable.load(saved_table).provenance.sessions
    assert len(runner.asked) == 2 * RECHECK_SESSIONS * len(found.cells)
    assert {cell for cell, _ in runner.asked} == set(found.cells)
    assert found.ratio.shape == (RECHECK_SESSIONS, len(found.cells))
    assert str(found).startswith(said)
    assert found.before > sessions.half_width
    more = [LAYERS * EXPERT_US * (expert - 1.0) * c.union for c in found.cells]
    known = [known_us(cell, cell.union) for cell in found.cells]
    wanted = 1.0 + np.array(more) / known
    assert found.ratio.mean(axis=0) == pytest.approx(wanted, abs=0.03)


def test_a_machine_at_half_speed_is_the_same_by_its_reference(recheck_with):
    """A comparison with a table that has one is of ratios."""
    slow = KnownRunner(reference_us=2.0 * REFERENCE_US)
    found = recheck_with(slow, reference_us=REFERENCE_US)
    assert found.verdict == "same"


def test_the_first_pass_of_a_session_warms_up(recheck_with):
    """Samples that are a tenth faster on a cold machine are in no comparison."""
    assert recheck_with(KnownRunner(cold=20)).verdict == "same"


def test_a_sample_that_failed_in_one_session_is_left_out(recheck_with):
    found = recheck_with(KnownRunner(fails=2))
    assert np.isnan(found.ratio).sum() == np.isnan(found.ratio[1]).sum() == 2
    assert found.verdict == "same"


def test_a_runner_that_runs_other_work_is_no_comparison(recheck_with):
    said = r"in (\d+) of \1 cells \(asked for U=\d+, ran \d+"
    with pytest.raises(MeasurementError, match=said):
        recheck_with(KnownRunner(more_experts=1))


@pytest.mark.parametrize(
    ("model", "named"), [("tiny", "tiny$"), ("my-own", "FILE, the YAML of my-own$")]
)
def test_another_machine_is_refused_with_a_command_that_runs(saved_table, model, named):
    """A model without a file in configs/ is given as a file."""
    table = CostTable.load(saved_table)
    table = replace(table, model=replace(table.model, name=model))
    with pytest.raises(DataError, match=f"sweep {named}"):
        check_same_machine(table, SimpleNamespace(facts={"gpu": "another"}))


@pytest.mark.parametrize(
    ("sd", "before", "said"),
    [(0.001, 0.0, "drifted"), (0.001, 0.025, "same"), (0.001, 0.06, "unclear"),
     (0.05, 0.0, "unclear")],
)  # fmt: skip
def test_a_change_is_judged_with_what_sessions_leave_open(sd, before, said):
    """All cells are 2 % slower; sessions or the table's own differ too."""
    of_session = sd * np.linspace(-1.0, 1.0, RECHECK_SESSIONS)
    ratio = 1.02 * np.exp(of_session[:, None] + np.zeros(RECHECK_CELLS))
    found = Recheck((), ratio, before)
    assert found.verdict == said
    assert found.change.value == pytest.approx(0.02)
    assert found.change.low < 0.02 < found.change.high


def test_noise_of_samples_is_no_change():
    """Sessions of one speed, with 3 % of noise in each sample."""
    rng = np.random.default_rng(0)
    shape = (RECHECK_SESSIONS, RECHECK_CELLS)
    ratios = [np.exp(0.03 * rng.standard_normal(shape)) for _ in range(400)]
    drifted = [Recheck((), ratio, 0.0).verdict == "drifted" for ratio in ratios]
    assert np.mean(drifted) < 0.06


def test_sessions_of_half_speed_hide_no_change():
    """Two of six take twice as long; all cells are 10 % slower."""
    ratio = np.full((RECHECK_SESSIONS, RECHECK_CELLS), 1.1)
    ratio[:2] *= 2.0
    found = Recheck((), ratio, 0.01)
    assert found.verdict == "drifted"
    assert found.change.value == pytest.approx(0.1)
    assert found.change.high > 1.0


def test_a_table_that_drifted_is_compared_with_less_certainty():
    ratio = np.full((RECHECK_SESSIONS, RECHECK_CELLS), 0.985)
    assert Recheck((), ratio, 0.001).verdict == "drifted"
    assert Recheck((), ratio, 0.001, trend=0.04).verdict == "same"


def test_a_few_cells_that_are_far_off_do_not_widen_a_median():
    error = np.full(RECHECK_CELLS, 0.02)
    few = np.where(np.arange(RECHECK_CELLS) < 5, 0.5, error)
    assert median_half_width(few) == median_half_width(error)


def test_a_median_over_cells_is_known_by_their_errors():
    rng, error = np.random.default_rng(0), np.full(RECHECK_CELLS, 0.02)
    medians = np.median(error * rng.standard_normal((4000, RECHECK_CELLS)), axis=1)
    inside = np.abs(medians) < median_half_width(error)
    assert inside.mean() == pytest.approx(0.95, abs=0.02)

"""A table is compared with its own machine and engine, and with no other."""

import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from evict_profile.cells import Cell, cells_of
from evict_profile.errors import DataError, MeasurementError
from evict_profile.records import replace
from evict_profile.sweep import recheck
from evict_profile.sweep.change import levels_of
from evict_profile.sweep.recheck import (
    RECHECK_CELLS,
    RECHECK_SESSIONS,
    Recheck,
    check_same_machine,
    recheck_cells,
    timed_before,
    union_shares,
)
from evict_profile.table import CostTable
from tests.factories import EXPERT_US, LAYERS, REFERENCE_US, known_us

QUIET = Console(quiet=True)
Rechecking = Callable[..., Recheck]


@pytest.fixture
def recheck_with(fitted, saved_table, tmp_path, monkeypatch):
    """Rechecks `saved_table` over a runner of the table's own facts, changed."""

    def run(runner, reference_us=None, warm_up_s=0.0, **facts):
        monkeypatch.setattr(recheck, "WARM_UP_S", warm_up_s)
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
        self, expert=1.0, reference_us=REFERENCE_US, more_experts=0, cold=0, odd=1.0
    ):
        """The first `cold` samples of a session are a tenth faster; `odd` is a factor
        of the reference alone, in the second session."""
        self.expert, self.rng = expert, np.random.default_rng(0)
        self.reference_us, self.more_experts = reference_us, more_experts
        self.cold, self.odd, self.session, self.done = cold, odd, -1, 0
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
        odd = self.odd if self.session == 1 else 1.0
        ran = cell.union + self.more_experts
        answer = {"clock_us": clock_us, "reference_us": odd * self.reference_us}
        shape = {"observed_width": cell.width, "union_low": ran, "union_high": ran}
        return [{**answer, **shape, "at_unix": time.time()}]


@pytest.mark.parametrize(
    ("expert", "said"), [(1.0, "same within"), (1.2, "drifted, all cells by +")]
)
def test_all_cells_and_sessions_decide(recheck_with, expert, said):
    """Each session measures every chosen cell once, with seeds of its own.

    That the runner was edited since does not matter: whether it still measures the
    same is a fair question.
    """
    runner = KnownRunner(expert)
    found = recheck_with(runner, runner_sha256="edited")
    assert found.sessions == (1, RECHECK_SESSIONS)
    assert len(set(runner.asked)) == RECHECK_SESSIONS * len(found.cells)
    assert {cell for cell, _ in runner.asked} == set(found.cells)
    assert str(found.change).startswith(said)
    wanted = LAYERS * EXPERT_US * (expert - 1.0)
    gained = found.now_us - found.before_us
    unions = np.array([cell.union for cell in found.cells])
    assert gained == pytest.approx(wanted * unions, abs=0.02 * found.before_us.max())


def test_a_machine_at_half_speed_is_the_same_by_its_reference(recheck_with):
    """A comparison with a table that has one is of ratios."""
    slow = KnownRunner(reference_us=2.0 * REFERENCE_US)
    found = recheck_with(slow, reference_us=REFERENCE_US)
    assert found.change.verdict == "same"


def test_a_recheck_is_as_warm_as_the_sweep(fitted, recheck_with):
    """As many samples ran before the table's in their session, on average."""
    before = len(fitted.frame) // 2
    runner = KnownRunner(cold=before - RECHECK_CELLS)
    assert recheck_with(runner, warm_up_s=60.0).change.verdict == "same"
    assert len(runner.asked) == pytest.approx(RECHECK_SESSIONS * before, rel=0.1)


def test_a_warm_up_ends_in_time(recheck_with):
    found = recheck_with(runner := KnownRunner(cold=10**6), warm_up_s=0.0)
    assert len(runner.asked) == RECHECK_SESSIONS * len(found.cells)
    assert str(found.change).startswith("drifted, all cells by -")


def test_a_runner_that_runs_other_work_is_no_comparison(recheck_with):
    said = r"in (\d+) of \1 cells \(asked for U=\d+, ran \d+"
    with pytest.raises(MeasurementError, match=said):
        recheck_with(KnownRunner(more_experts=1))


def test_a_reference_that_alone_moved_in_one_session_does_not_count(recheck_with):
    """As in the samples behind a table; the other sessions hold the machine's speed."""
    found = recheck_with(KnownRunner(odd=1.4), reference_us=REFERENCE_US)
    assert found.change.verdict == "same"


def test_shares_of_u_are_those_of_the_cost(fitted, saved_table):
    cells = [Cell("layers", 4, union, 64, 1, "balanced") for union in (4, 8, 16)]
    shares = union_shares(CostTable.load(saved_table), cells)
    wanted = [LAYERS * EXPERT_US * c.union / known_us(c, c.union) for c in cells]
    assert shares == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize(
    ("model", "named"), [("tiny", "tiny$"), ("my-own", "FILE, the YAML of my-own$")]
)
def test_another_machine_is_refused_with_a_command_that_runs(saved_table, model, named):
    """A model without a file in configs/ is given as a file."""
    table = CostTable.load(saved_table)
    table = replace(table, model=replace(table.model, name=model))
    with pytest.raises(DataError, match=f"sweep {named}"):
        check_same_machine(table, SimpleNamespace(facts={"gpu": "another"}))


def test_each_session_is_an_session(fitted):
    """Samples of an older version, which tell none, are of one."""
    one = timed_before(fitted.frame)
    cells = sorted(set(cells_of(one)))
    assert all(cell.union > 0 for cell in cells)
    assert levels_of(one, cells).of_session.tolist() == [0.0]
    two = one.assign(session=np.where(one["round"] % 2, "1/1 #1", "1/1 #2"))
    few = levels_of(two, cells[:3])
    assert len(few.of_session) == 2
    assert few.of_cell == pytest.approx(levels_of(two, cells).of_cell[:3])

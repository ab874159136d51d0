"""A table is compared with its own machine and engine, and with no other."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from evict_profile.cells import Cell, cells_of
from evict_profile.errors import RunnerError, TableError
from evict_profile.fit.fitted import Fitted
from evict_profile.records import replace
from evict_profile.sweep import recheck
from evict_profile.sweep.recheck import (
    RECHECK_OPENINGS,
    check_same_machine,
    levels_at,
    recheck_cells,
    timed_before,
    union_shares,
)
from evict_profile.table import CostTable
from tests.factories import EXPERT_US, LAYERS, REFERENCE_US, known_us

QUIET = Console(quiet=True)


def session_with(table_path: Path, **changes: object) -> SimpleNamespace:
    """What an open runner tells of itself: the table's own facts, changed."""
    facts = CostTable.load(table_path).provenance.fingerprint
    return SimpleNamespace(facts={**facts, **changes})


def test_another_device_is_refused_by_name(saved_table: Path) -> None:
    """With the command that measures this one."""
    here = session_with(saved_table, device="another")
    with pytest.raises(
        TableError, match=r"device: another here.*evict-profile profile"
    ):
        check_same_machine(CostTable.load(saved_table), here)  # type: ignore[arg-type]


def test_another_machine_is_refused_before_a_cell_is_measured(
    fitted: Fitted, saved_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has no runner, so that a measurement would fail otherwise."""
    here = session_with(saved_table, device="another")
    monkeypatch.setattr(recheck, "OpenRunner", lambda *_: nullcontext(here))
    table = CostTable.load(saved_table)
    with pytest.raises(TableError, match="device: another here"):
        recheck_cells(table, fitted.frame, tmp_path / "runner.log", None, QUIET)


def test_an_edited_runner_may_be_compared(saved_table: Path) -> None:
    """Whether it still measures the same is a fair question."""
    here = session_with(saved_table, runner_sha256="edited")
    check_same_machine(CostTable.load(saved_table), here)  # type: ignore[arg-type]


def test_a_log_that_will_be_gone_is_not_named(
    fitted: Fitted, saved_table: Path, tmp_path: Path
) -> None:
    """What the runner said last is quoted."""
    table, log = CostTable.load(saved_table), tmp_path / "runner.log"
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho its last words >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(RunnerError) as caught:
        recheck_cells(table, fitted.frame, log, str(python), QUIET)
    assert str(caught.value) == "the runner ended with status 3: its last words"


class KnownRunner:
    """Answers with the cost that the table was measured from, times a factor."""

    def __init__(self, expert: float = 1.0, reference_us: float = REFERENCE_US) -> None:
        self.expert, self.rng = expert, np.random.default_rng(0)
        self.reference_us = reference_us
        self.asked: list[tuple[Cell, int]] = []

    def measure(self, cell: Cell, seeds: list[int]) -> list[dict[str, float]]:
        self.asked.append((cell, *seeds))
        more_us = LAYERS * EXPERT_US * (self.expert - 1.0) * cell.union
        noise = 1.0 + 0.005 * self.rng.standard_normal()
        speed = self.reference_us / REFERENCE_US
        clock_us = speed * noise * (known_us(cell, cell.union) + more_us)
        return [{"clock_us": clock_us, "reference_us": self.reference_us}]


@pytest.mark.parametrize(
    ("expert", "said"), [(1.0, "same within"), (1.2, "drifted, all cells by +")]
)
def test_all_cells_and_openings_decide(
    fitted: Fitted,
    saved_table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expert: float,
    said: str,
) -> None:
    """Each opening measures every chosen cell once, with seeds of its own."""
    runner, opened = KnownRunner(expert), []
    session = SimpleNamespace(**vars(session_with(saved_table)), runner=runner)

    def open_session(*_: object) -> nullcontext[SimpleNamespace]:
        opened.append(True)
        return nullcontext(session)

    monkeypatch.setattr(recheck, "OpenRunner", open_session)
    table, log = CostTable.load(saved_table), tmp_path / "runner.log"
    found = recheck_cells(table, fitted.frame, log, None, QUIET)
    assert len(opened) == RECHECK_OPENINGS
    assert found.openings == (1, RECHECK_OPENINGS)
    assert len(set(runner.asked)) == RECHECK_OPENINGS * len(found.cells)
    assert {cell for cell, _ in runner.asked} == set(found.cells)
    assert str(found.change).startswith(said)
    wanted = LAYERS * EXPERT_US * (expert - 1.0)
    gained = found.now_us - found.before_us
    unions = np.array([cell.union for cell in found.cells])
    assert gained == pytest.approx(wanted * unions, abs=0.02 * found.before_us.max())


def test_a_machine_at_half_speed_is_the_same_by_its_reference(
    fitted: Fitted, saved_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison with a table that has one is of ratios."""
    runner = KnownRunner(reference_us=2.0 * REFERENCE_US)
    session = SimpleNamespace(**vars(session_with(saved_table)), runner=runner)
    monkeypatch.setattr(recheck, "OpenRunner", lambda *_: nullcontext(session))
    table = CostTable.load(saved_table)
    made = replace(table.provenance, reference_us=REFERENCE_US)
    paired = replace(table, provenance=made)
    found = recheck_cells(paired, fitted.frame, tmp_path / "log", None, QUIET)
    assert found.change.verdict == "same"


def test_shares_of_u_are_those_of_the_cost(fitted: Fitted, saved_table: Path) -> None:
    """What an expert costs is known here."""
    cells = [Cell("layers", 4, union, 64, 1, "balanced") for union in (4, 8, 16)]
    shares = union_shares(CostTable.load(saved_table), cells)
    wanted = [LAYERS * EXPERT_US * c.union / known_us(c, c.union) for c in cells]
    assert shares == pytest.approx(wanted, abs=0.03)


def test_samples_that_tell_no_session_are_of_one_opening(fitted: Fitted) -> None:
    """Older ones do not; where they do, each session is an opening."""
    one = timed_before(fitted.frame.drop(columns="session", errors="ignore"))
    cells = sorted(set(cells_of(one)))
    assert all(cell.union > 0 for cell in cells)
    assert levels_at(one, cells, cells).share == 1.0
    two = one.assign(session=np.where(one["round"] % 2, "1/1 #1", "1/1 #2"))
    assert levels_at(two, cells, cells[:3]).share == pytest.approx(0.5)
    assert len(levels_at(two, cells, cells[:3]).of_cell) == 3

"""A table is compared with its own machine and engine, and with no other."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from evict_profile.cells import Cell
from evict_profile.errors import RunnerError, TableError
from evict_profile.fit.fitted import Fitted
from evict_profile.stats import Agreement, MedianInterval
from evict_profile.sweep import recheck
from evict_profile.sweep.recheck import (
    Recheck,
    check_same_machine,
    overall,
    recheck_cells,
)
from evict_profile.table import CostTable


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
    monkeypatch.setattr(recheck, "Session", lambda *_: nullcontext(here))
    table = CostTable.load(saved_table)
    with pytest.raises(TableError, match="device: another here"):
        recheck_cells(table, fitted.frame, tmp_path / "runner.log", None)


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
        recheck_cells(table, fitted.frame, log, str(python))
    assert str(caught.value) == "the runner ended with status 3: its last words"


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        (("same", "same", "drifted"), "same"),
        (("drifted", "drifted", "same"), "drifted"),
        (("same", "drifted"), "unclear"),
    ],
)
def test_most_cells_decide(verdicts: tuple[Agreement, ...], whole: Agreement) -> None:
    """Without a majority it is unclear."""
    cell = Cell("layers", 4, 8, 64, 1, "balanced")
    then = MedianInterval(100.0, 99.0, 101.0, 9)
    checks = [Recheck(cell, then, then, verdict) for verdict in verdicts]
    assert overall(checks) == whole

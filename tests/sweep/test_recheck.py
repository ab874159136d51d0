"""A table is compared with its own machine and engine, and with no other."""

from collections.abc import Callable
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
    Recheck,
    levels_at,
    recheck_cells,
    timed_before,
    union_shares,
)
from evict_profile.table import CostTable
from tests.factories import EXPERT_US, LAYERS, REFERENCE_US, known_us

QUIET = Console(quiet=True)
Rechecking = Callable[..., Recheck]


@pytest.fixture
def recheck_with(
    fitted: Fitted, saved_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Rechecking:
    """Rechecks `saved_table` over a runner of the table's own facts, changed."""

    def run(
        runner: "KnownRunner | None", reference_us: float | None = None, **facts: object
    ) -> Recheck:
        table = CostTable.load(saved_table)
        own = {**table.provenance.fingerprint, **facts}
        spec = table.provenance.sweep
        session = SimpleNamespace(facts=own, runner=runner, spec=spec)
        monkeypatch.setattr(recheck, "OpenRunner", lambda *_: nullcontext(session))
        made = replace(table.provenance, reference_us=reference_us)
        log = tmp_path / "runner.log"
        return recheck_cells(
            replace(table, provenance=made), fitted.frame, log, None, QUIET
        )

    return run


def test_another_machine_is_refused_before_a_cell_is_measured(
    recheck_with: Rechecking,
) -> None:
    """By what differs, with the command that measures this one."""
    said = r"device: another here.*evict-profile profile"
    with pytest.raises(TableError, match=said):
        recheck_with(None, device="another")


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
    recheck_with: Rechecking, expert: float, said: str
) -> None:
    """Each opening measures every chosen cell once, with seeds of its own.

    That the runner was edited since does not matter: whether it still measures the
    same is a fair question.
    """
    runner = KnownRunner(expert)
    found = recheck_with(runner, runner_sha256="edited")
    assert found.openings == (1, RECHECK_OPENINGS)
    assert len(set(runner.asked)) == RECHECK_OPENINGS * len(found.cells)
    assert {cell for cell, _ in runner.asked} == set(found.cells)
    assert str(found.change).startswith(said)
    wanted = LAYERS * EXPERT_US * (expert - 1.0)
    gained = found.now_us - found.before_us
    unions = np.array([cell.union for cell in found.cells])
    assert gained == pytest.approx(wanted * unions, abs=0.02 * found.before_us.max())


def test_a_machine_at_half_speed_is_the_same_by_its_reference(
    recheck_with: Rechecking,
) -> None:
    """A comparison with a table that has one is of ratios."""
    slow = KnownRunner(reference_us=2.0 * REFERENCE_US)
    found = recheck_with(slow, reference_us=REFERENCE_US)
    assert found.change.verdict == "same"


def test_shares_of_u_are_those_of_the_cost(fitted: Fitted, saved_table: Path) -> None:
    """What an expert costs is known here."""
    cells = [Cell("layers", 4, union, 64, 1, "balanced") for union in (4, 8, 16)]
    shares = union_shares(CostTable.load(saved_table), cells)
    wanted = [LAYERS * EXPERT_US * c.union / known_us(c, c.union) for c in cells]
    assert shares == pytest.approx(wanted, abs=0.03)


def test_each_session_is_an_opening(fitted: Fitted) -> None:
    """Samples of an older version, which tell none, are of one."""
    one = timed_before(fitted.frame)
    cells = sorted(set(cells_of(one)))
    assert all(cell.union > 0 for cell in cells)
    assert levels_at(one, cells).share == 1.0
    two = one.assign(session=np.where(one["round"] % 2, "1/1 #1", "1/1 #2"))
    few = levels_at(two, cells[:3])
    assert few.share == pytest.approx(0.5)
    assert few.of_cell == pytest.approx(levels_at(two, cells).of_cell[:3])

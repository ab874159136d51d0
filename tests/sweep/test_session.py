"""A runner is opened with all that a table needs to know of it."""

import pytest

from evict_profile.config import ModelSpec
from evict_profile.errors import RunnerError
from evict_profile.runner import Runner
from evict_profile.sweep.grid import Grid
from tests.sweep.conftest import OpenSession


def test_a_runner_that_keeps_a_fact_is_refused(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing fact is named before anything is measured."""
    whole = Runner.open

    def without_clock(runner: Runner, *asked: object) -> dict[str, object]:
        opened = whole(runner, *asked)  # type: ignore[arg-type]
        del opened["fingerprint"]["clock"]
        return opened

    monkeypatch.setattr(Runner, "open", without_clock)
    with pytest.raises(RunnerError, match="without telling clock"):
        open_session()


@pytest.mark.parametrize(
    ("asked", "opened"), [("auto", "float32"), ("bfloat16", "bfloat16")]
)
def test_auto_takes_the_dtype_that_the_runner_opens(
    open_session: OpenSession,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    opened: str,
) -> None:
    """It alone sees the device; model, fingerprint and a restart follow it."""
    monkeypatch.setenv("SCRIPTED_DTYPE", "float32")
    with open_session(dtype=asked) as session:
        assert session.model.dtype == session.facts["dtype"] == opened
        session.restart()
        assert session.model.dtype == opened


def test_a_runner_is_told_every_place_of_the_sweep(
    open_session: OpenSession, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it can say which kernels run there."""
    whole, told = Runner.open, []

    def listening(
        runner: Runner, model: ModelSpec, options: dict[str, list[object]]
    ) -> dict[str, object]:
        told.extend(options["places"])
        return whole(runner, model, options)

    monkeypatch.setattr(Runner, "open", listening)
    with open_session():
        assert told == sorted({(c.width, c.context, c.batch) for c in grid.cells})

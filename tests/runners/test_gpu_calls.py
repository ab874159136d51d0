"""What a call of many steps runs, keeps, packs and says."""

import json
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from evict_profile.io import sole_writer
from runners import gpu_calls, gpu_steps
from runners.gpu_calls import SOME_MISSING, SOME_REFUSED, go, parser_of
from runners.gpu_steps import (
    INTERRUPTED,
    LEAST_S,
    USER_ERROR,
    Command,
    Missing,
    Outcome,
    Step,
)
from tests.runners.scripted_steps import KIND, Scripted, call, without_processes


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Steps without processes."""
    return without_processes(Scripted(tmp_path), monkeypatch)


def steps(*names: str, **more: Any) -> list[Step]:
    """Steps of 100 s each."""
    return [Step(name, 100.0, lambda: ("command",), **more) for name in names]


def summary(out: Path) -> Any:
    """What the calls up to now have written."""
    return json.loads((out / "summary.json").read_text())


def packed(out: Path) -> set[str]:
    """Names in the archive."""
    with tarfile.open(out / "results.tar.gz") as tar:
        return set(tar.getnames())


def test_what_is_done_is_not_done_again(scripted: Scripted) -> None:
    """A step that came to its end is skipped by the same command."""
    assert call(scripted.out, steps("one", "two")) == 0
    assert call(scripted.out, steps("one", "two")) == 0
    assert scripted.names == ["one", "two"]


def test_a_failed_step_is_tried_again(scripted: Scripted) -> None:
    """And keeps no other from its turn."""
    scripted.failing = {"one"}
    assert call(scripted.out, steps("one", "two")) == SOME_MISSING
    assert summary(scripted.out)["missing"] == ["one"]
    scripted.failing = set()
    assert call(scripted.out, steps("one", "two")) == 0
    assert scripted.names == ["one", "two", "one"]


def test_a_refused_table_is_told_from_a_missing_one(scripted: Scripted) -> None:
    """It would be refused again, so no call tries it until its note is deleted."""
    scripted.refused = {"table"}
    plan = steps("table", "other")
    assert call(scripted.out, plan) == SOME_REFUSED
    assert call(scripted.out, plan) == SOME_REFUSED
    assert scripted.names == ["table", "other"]
    assert summary(scripted.out)["refused"] == ["table"]
    assert summary(scripted.out)["missing"] == []
    (scripted.out / "refused" / "table.json").unlink()
    scripted.refused = set()
    assert call(scripted.out, plan) == 0


def test_a_step_begins_only_if_it_can_end(scripted: Scripted) -> None:
    """Unless it goes on next time; it gets no more than what is left."""
    scripted.took_s = 150.0
    plan = [*steps("one"), *steps("long"), *steps("lasting", goes_on=True)]
    assert call(scripted.out, plan, 210.0) == SOME_MISSING
    assert scripted.names == ["one", "lasting"]
    assert scripted.limits["lasting"] == pytest.approx(60.0)
    assert "60 are left" in summary(scripted.out)["calls"][0][1]["result"]


def test_a_step_longer_than_a_call_is_tried(scripted: Scripted) -> None:
    """Else short calls would wait for it for ever."""
    assert call(scripted.out, steps("one"), 50.0) == 0


def test_results_are_packed_after_each_step(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is killed in a step has kept all those before it."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def second() -> Command:
        monkeypatch.setattr(gpu_steps, "run", killed)
        return ("command",)

    plan = [*steps("one"), Step("two", 100.0, second)]
    with pytest.raises(KeyboardInterrupt):
        call(scripted.out, plan)
    assert {"done/one.json", "logs-1/one.log", "summary.json"} <= packed(scripted.out)


def test_one_goes_on_from_the_archive(
    scripted: Scripted, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Unpacked on another machine, it says what is done."""
    call(scripted.out, steps("one"))
    other = tmp_path_factory.mktemp("other")
    with tarfile.open(scripted.out / "results.tar.gz") as tar:
        tar.extractall(other, filter="data")
    assert call(other, steps("one", "two")) == 0
    assert scripted.names == ["one", "two"]


def test_weights_and_large_files_stay_behind(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A world without its weights would pass for one that is trained."""
    monkeypatch.setattr(gpu_calls, "LARGEST_RESULT", 1000)
    (scripted.out / "world").mkdir()
    (scripted.out / "world" / "model.yaml").write_text("name: world")
    (scripted.out / "large").write_bytes(bytes(2000))
    call(scripted.out, steps("one"))
    assert packed(scripted.out) == {"done/one.json", "logs-1/one.log", "summary.json"}


def test_a_step_says_what_it_waits_for(scripted: Scripted) -> None:
    """And is missing."""

    def command() -> Command:
        raise Missing("--traces FILE")

    assert call(scripted.out, [Step("one", 9.0, command)]) == SOME_MISSING
    assert summary(scripted.out)["calls"][0][0]["result"] == "needs --traces FILE"


def test_an_unknown_step_is_refused(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2 and the names that there are, before anything runs."""
    parser = parser_of("What it does.")
    words = ["--out", str(scripted.out / "new"), "--only", "three"]
    with pytest.raises(SystemExit) as end:
        go(parser, parser.parse_args(words), KIND, steps("one", "two"))
    assert end.value.code == 2
    assert "--only three: the steps are one, two" in capsys.readouterr().err
    assert not (scripted.out / "new").exists()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon", "29"])
def test_a_limit_that_lets_no_step_begin_is_refused(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """With exit code 2: such a call would say for ever that it is to be run again."""
    with pytest.raises(SystemExit) as end:
        parser_of("What it does.").parse_args(["--out", "out", "--limit-s", text])
    assert end.value.code == 2
    told = "give at least 30" if text == "29" else f"'{text}' is no number above 0"
    assert told in capsys.readouterr().err


def test_the_shortest_call_begins_what_can_go_on(scripted: Scripted) -> None:
    """Though a moment of it is gone by then."""
    scripted.took_s = 2.0
    plan = [*steps("one"), *steps("lasting", goes_on=True)]
    assert call(scripted.out, plan, LEAST_S) == 0


def test_a_file_for_out_is_refused(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, and left as it was."""
    taken = scripted.out / "taken"
    taken.write_text("mine")
    parser = parser_of("What it does.")
    with pytest.raises(SystemExit) as end:
        go(parser, parser.parse_args(["--out", str(taken)]), KIND, steps("one"))
    assert end.value.code == 2
    assert f"--out {taken}" in capsys.readouterr().err
    assert taken.read_text() == "mine"


def test_only_the_steps_named(scripted: Scripted) -> None:
    """The exit code speaks of these."""
    parser = parser_of("What it does.")
    asked = parser.parse_args(["--out", str(scripted.out), "--only", "two"])
    assert go(parser, asked, KIND, steps("one", "two")) == 0
    assert scripted.names == ["two"]


def asked_of(out: Path, **kind: str) -> int:
    """The exit code of a script that is asked for one step."""
    parser = parser_of("What it does.")
    asked = parser.parse_args(["--out", str(out)])
    return go(parser, asked, {**KIND, **kind}, steps("one"))


@pytest.mark.parametrize("other", [{"scale": "dry"}, {"script": "another"}])
def test_what_was_done_of_another_kind_is_not_taken(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], other: dict[str, str]
) -> None:
    """Neither a dry run nor another script; what is there stays."""
    assert asked_of(scripted.out, **other) == 0
    before = (scripted.out / "summary.json").read_bytes()
    capsys.readouterr()
    assert asked_of(scripted.out) == USER_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {scripted.out}: holds other results (")
    assert (scripted.out / "summary.json").read_bytes() == before


def test_the_kind_is_noted_before_the_first_step(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call killed in it leaves a folder that knows what it is of."""

    def looks(name: str, *_: object) -> Outcome:
        assert summary(scripted.out)["kind"] == KIND
        return Outcome(name, 0, 1.0, None)

    monkeypatch.setattr(gpu_steps, "run", looks)
    assert asked_of(scripted.out) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"calls": 1}', "{", None])
def test_a_summary_that_is_not_ours_is_refused(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    """In one sentence; a folder likewise."""
    path = scripted.out / "summary.json"
    path.mkdir() if text is None else path.write_text(text)
    assert asked_of(scripted.out) == USER_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}: is no summary")
    assert [each.name for each in scripted.out.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("name", ["done", "logs-1", "logs-1/one.log"])
def test_what_is_in_the_way_is_named(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A file for a folder, a folder for a file: one sentence, no traceback."""
    path = scripted.out / name
    path.mkdir(parents=True) if path.suffix else path.write_text("mine")
    assert asked_of(scripted.out) == USER_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}")


def test_two_calls_do_not_share_a_folder(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is refused before it touches anything."""
    with sole_writer(scripted.out):
        assert asked_of(scripted.out) == USER_ERROR
    assert "another process" in capsys.readouterr().err
    assert list(scripted.out.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_call_keeps_and_packs(
    scripted: Scripted,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    """Says so in one sentence, and the same command goes on."""

    def stopped(name: str, *_: object) -> Outcome:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        return Outcome(name, INTERRUPTED, 1.0, "kept")

    with monkeypatch.context() as patched:
        patched.setattr(gpu_steps, "run", stopped)
        assert asked_of(scripted.out) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted; the same command goes on\n"
    assert summary(scripted.out)["calls"][0][0]["status"] == INTERRUPTED
    assert "summary.json" in packed(scripted.out)
    assert not (scripted.out / "lock").exists()
    assert asked_of(scripted.out) == 0


def test_locks_are_not_packed(scripted: Scripted) -> None:
    """Neither ours nor that of a sweep that was killed."""
    (scripted.out / "run-one").mkdir()
    (scripted.out / "run-one" / "lock").write_text("")
    call(scripted.out, steps("one"))
    assert packed(scripted.out) == {"done/one.json", "logs-1/one.log", "summary.json"}

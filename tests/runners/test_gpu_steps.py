"""What a call of many steps runs, keeps, packs and says."""

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from runners import gpu_steps
from runners.gpu_steps import (
    SOME_MISSING,
    SOME_REFUSED,
    TIME_UP,
    Command,
    Missing,
    Step,
    evict,
    go,
    parser_of,
    run,
    work,
)
from tests.known_run import write_run
from tests.runners.scripted_steps import Scripted, without_processes


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Steps without processes."""
    return without_processes(Scripted(tmp_path), monkeypatch)


def steps(*names: str, **more: Any) -> list[Step]:
    """Steps of 100 s each."""
    return [Step(name, 100.0, lambda: ("command",), **more) for name in names]


def python(code: str) -> Command:
    """A process."""
    return (sys.executable, "-c", code)


def summary(out: Path) -> Any:
    """What the calls up to now have written."""
    return json.loads((out / "summary.json").read_text())


def packed(out: Path) -> set[str]:
    """Names in the archive."""
    with tarfile.open(out / "results.tar.gz") as tar:
        return set(tar.getnames())


def test_what_is_done_is_not_done_again(scripted: Scripted) -> None:
    """A step that came to its end is skipped by the same command."""
    assert work(scripted.out, steps("one", "two"), 570.0) == 0
    assert work(scripted.out, steps("one", "two"), 570.0) == 0
    assert scripted.names == ["one", "two"]


def test_a_failed_step_is_tried_again(scripted: Scripted) -> None:
    """And keeps no other from its turn."""
    scripted.failing = {"one"}
    assert work(scripted.out, steps("one", "two"), 570.0) == SOME_MISSING
    assert summary(scripted.out)["missing"] == ["one"]
    scripted.failing = set()
    assert work(scripted.out, steps("one", "two"), 570.0) == 0
    assert scripted.names == ["one", "two", "one"]


def test_a_refused_table_is_told_from_a_missing_one(scripted: Scripted) -> None:
    """It would be refused again, so no call tries it until its note is deleted."""
    scripted.refused = {"table"}
    plan = steps("table", "other")
    assert work(scripted.out, plan, 570.0) == SOME_REFUSED
    assert work(scripted.out, plan, 570.0) == SOME_REFUSED
    assert scripted.names == ["table", "other"]
    assert summary(scripted.out)["refused"] == ["table"]
    assert summary(scripted.out)["missing"] == []
    (scripted.out / "refused" / "table.json").unlink()
    scripted.refused = set()
    assert work(scripted.out, plan, 570.0) == 0


def test_the_gates_words_are_known(tmp_path: Path) -> None:
    """`evict-profile export` of samples that are all noise."""
    samples = write_run(tmp_path / "run", noise=0.8).folder
    command = evict("export", str(samples), "--tables", str(tmp_path / "tables"))
    outcome = run("table", command, 60.0, tmp_path)
    assert outcome.is_refusal, outcome


def test_a_step_begins_only_if_it_can_end(scripted: Scripted) -> None:
    """Unless it goes on next time; it gets no more than what is left."""
    scripted.took_s = 150.0
    plan = [*steps("one"), *steps("long"), *steps("lasting", goes_on=True)]
    assert work(scripted.out, plan, 210.0) == SOME_MISSING
    assert scripted.names == ["one", "lasting"]
    assert scripted.limits["lasting"] == pytest.approx(60.0)
    assert "60 are left" in summary(scripted.out)["calls"][0][1]["result"]


def test_a_step_longer_than_a_call_is_tried(scripted: Scripted) -> None:
    """Else short calls would wait for it for ever."""
    assert work(scripted.out, steps("one"), 50.0) == 0


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
        work(scripted.out, plan, 570.0)
    assert {"done/one.json", "logs-1/one.log", "summary.json"} <= packed(scripted.out)


def test_one_goes_on_from_the_archive(
    scripted: Scripted, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Unpacked on another machine, it says what is done."""
    work(scripted.out, steps("one"), 570.0)
    other = tmp_path_factory.mktemp("other")
    with tarfile.open(scripted.out / "results.tar.gz") as tar:
        tar.extractall(other, filter="data")
    assert work(other, steps("one", "two"), 570.0) == 0
    assert scripted.names == ["one", "two"]


def test_weights_and_large_files_stay_behind(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A world without its weights would pass for one that is trained."""
    monkeypatch.setattr(gpu_steps, "LARGEST_RESULT", 1000)
    (scripted.out / "world").mkdir()
    (scripted.out / "world" / "model.yaml").write_text("name: world")
    (scripted.out / "large").write_bytes(bytes(2000))
    work(scripted.out, steps("one"), 570.0)
    assert packed(scripted.out) == {"done/one.json", "logs-1/one.log", "summary.json"}


def test_a_step_says_what_it_waits_for(scripted: Scripted) -> None:
    """And is missing."""

    def command() -> Command:
        raise Missing("--traces FILE")

    assert work(scripted.out, [Step("one", 9.0, command)], 570.0) == SOME_MISSING
    assert summary(scripted.out)["calls"][0][0]["result"] == "needs --traces FILE"


def test_a_step_past_its_limit_is_interrupted(tmp_path: Path) -> None:
    """As by Ctrl-C, so that it can keep what it has."""
    code = (
        "import time\ntry: time.sleep(60)\n"
        "except KeyboardInterrupt: print('kept', flush=True)"
    )
    outcome = run("slow", python(code), 1.0, tmp_path)
    assert (outcome.status, outcome.result) == (TIME_UP, "kept")


def test_one_that_does_not_listen_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its grace."""
    monkeypatch.setattr(gpu_steps, "PATIENCE_S", 0.2)
    code = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)"
    assert run("deaf", python(code), 1.0, tmp_path).status == TIME_UP


def test_the_last_line_is_told(tmp_path: Path) -> None:
    """As JSON where it is; the checkout can be imported."""
    code = "import runners; print('first'); print('{\"found\": 1}')"
    assert run("json", python(code), 60.0, tmp_path).result == {"found": 1}


def test_an_unknown_step_is_refused(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2 and the names that there are, before anything runs."""
    parser = parser_of("What it does.")
    words = ["--out", str(scripted.out / "new"), "--only", "three"]
    with pytest.raises(SystemExit) as end:
        go(parser, parser.parse_args(words), steps("one", "two"))
    assert end.value.code == 2
    assert "--only three: the steps are one, two" in capsys.readouterr().err
    assert not (scripted.out / "new").exists()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_a_limit_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """With exit code 2."""
    with pytest.raises(SystemExit) as end:
        parser_of("What it does.").parse_args(["--out", "out", "--limit-s", text])
    assert end.value.code == 2
    assert f"'{text}' is no number above 0" in capsys.readouterr().err


def test_a_file_for_out_is_refused(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, and left as it was."""
    taken = scripted.out / "taken"
    taken.write_text("mine")
    parser = parser_of("What it does.")
    with pytest.raises(SystemExit) as end:
        go(parser, parser.parse_args(["--out", str(taken)]), steps("one"))
    assert end.value.code == 2
    assert f"--out {taken}" in capsys.readouterr().err
    assert taken.read_text() == "mine"


def test_only_the_steps_named(scripted: Scripted) -> None:
    """The exit code speaks of these."""
    parser = parser_of("What it does.")
    asked = parser.parse_args(["--out", str(scripted.out), "--only", "two"])
    assert go(parser, asked, steps("one", "two")) == 0
    assert scripted.names == ["two"]

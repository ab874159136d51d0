"""Steps of a GPU session: what is run, resumed, packed and refused."""

import json
import signal
import subprocess
import sys
import tarfile
import time

import pytest
from typer.main import get_command

from evict_profile.cli import app
from evict_profile.config import load_sweep
from runners import gpu_session, gpu_sglang, gpu_tables, gpu_world
from runners.gpu_session import (
    INTERRUPTED,
    MISSING,
    TIME_UP,
    TOOL,
    USER_ERROR,
    GpuStep,
    StepResult,
    parser_of,
    run,
    run_script,
    steps_of,
)

ALL_STEPS = [
    step
    for dry in (True, False)
    for steps in (
        gpu_tables.make_steps(dry, "t.parquet"),
        gpu_world.make_steps(dry, 1.0),
        gpu_sglang.make_steps(dry, "python", gpu_sglang.make_sweep(dry)),
    )
    for step in steps
]


def options_of(out, *more):
    return parser_of("").parse_args(["--out", str(out), "--dry-run", *more])


@pytest.fixture
def ran(monkeypatch):
    """Names of the steps that ran; a step named "bad" fails."""
    names: list[str] = []

    def fake(name, words, out, limit_s):
        names.append(name)
        (out / f"{name}.txt").write_text(" ".join(words))
        return StepResult(name, int(name == "bad"), 1.0, "said")

    monkeypatch.setattr(gpu_session, "run", fake)
    return names


def steps(*names, command="benchmarks/nuisance.py"):
    return [GpuStep(name, 100.0, False, command) for name in names]


def start(out, plan, *more):
    return run_script(options_of(out, *more), "s", plan, {})


def test_a_listing_is_read_line_by_line():
    listing = "\none 60 evict-profile show {table}\n    --more\ntwo 90+ a.py\n"
    assert steps_of(listing, table="t.json") == [
        GpuStep("one", 60.0, False, "evict-profile show t.json --more"),
        GpuStep("two", 90.0, True, "a.py"),
    ]


def test_a_second_machine_s_table_of_the_small_world_changes_no_step(
    tmp_path, monkeypatch
):
    shipped = gpu_session.ROOT / gpu_tables.WORLD_TABLE
    assert shipped.is_file()
    for machine in (shipped.parents[2].name, "another"):
        path = tmp_path / "cost_tables" / machine / "small-world-9.04m/tree-decoding"
        path.mkdir(parents=True)
        (path / shipped.name).touch()
    monkeypatch.setattr(gpu_tables, "ROOT", tmp_path)
    steps = gpu_tables.make_steps(True, "t.parquet")
    assert any(shipped.parents[2].name in step.command for step in steps)


def test_what_is_done_is_not_done_again(tmp_path, ran):
    """What failed is tried again, and keeps no other from its turn."""
    plan = steps("bad", "good")
    assert start(tmp_path, plan) == MISSING
    assert start(tmp_path, plan) == MISSING
    assert ran == ["bad", "good", "bad"]
    assert start(tmp_path, plan, "--only", "good") == 0


def test_a_step_begins_only_if_it_can_end(tmp_path, ran):
    lasting = GpuStep("lasting", 100.0, True, "benchmarks/nuisance.py")
    plan = [*steps("long"), lasting]
    assert start(tmp_path, plan, "--limit-s", "50") == MISSING
    assert ran == ["lasting"]


def test_a_pattern_is_the_newest_file(tmp_path, ran):
    plan = steps("one", command="benchmarks/start_up.py t/*.json")
    assert start(tmp_path, plan) == MISSING and not ran
    (tmp_path / "t").mkdir()
    for name in ("1.0.0", "1.0.1"):
        (tmp_path / "t" / f"{name}.json").touch()
    assert start(tmp_path, plan) == 0
    assert (tmp_path / "one.txt").read_text().endswith("t/1.0.1.json")


def test_the_archive_is_packed_after_every_step(tmp_path, ran):
    """Where it was asked for, without weights and large files; one goes on from it."""
    out, archive, other = (tmp_path / name for name in ("out", "kept.tar.gz", "other"))
    (out / "world").mkdir(parents=True)
    (out / "world" / "weights").touch()
    (out / "large").write_bytes(bytes(gpu_session.MAX_FILE_BYTES + 1))
    words = ("--archive", str(archive))
    start(out, steps("one"), *words)
    with tarfile.open(archive) as tar:
        names = {"done/one", "one.txt", "slow.json", "summary.json"}
        assert set(tar.getnames()) == names
        tar.extractall(other, filter="data")
    assert start(other, steps("one", "two")) == 0
    assert ran == ["one", "two"]


@pytest.mark.parametrize("what", ["script", "gpu"])
def test_a_folder_of_another_kind_is_refused(what, tmp_path, capsys, ran):
    """Nothing is written there: its sweeps are of another GPU or plan."""
    start(tmp_path, steps("one"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["kind"][what] = "another"
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    plan, sweeps = steps("one", "two"), {"sweep": load_sweep("tiny")}
    assert run_script(options_of(tmp_path), "s", plan, sweeps) == USER_ERROR
    assert ran == ["one"] and "another --out" in capsys.readouterr().err
    assert not (tmp_path / "sweep.json").exists()


def test_a_step_past_its_limit_may_keep_what_it_has(tmp_path):
    """It is interrupted as by Ctrl-C."""
    code = (
        "import time\ntry: print('up', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: print('kept')"
    )
    ending = run("one", [sys.executable, "-c", code], tmp_path, 2.0)
    assert (ending.status, ending.last_line) == (TIME_UP, "kept")
    assert (tmp_path / "logs" / "one.log").read_text() == "up\nkept\n"


def test_an_interrupted_call_is_packed(tmp_path):
    """SIGTERM as Ctrl-C: the step ends first, and the archive says so."""
    (tmp_path / "one.py").write_text("print('up', flush=True)\nwhile True: pass")
    code = (
        "import sys; from runners import gpu_session as g; "
        f"g.ROOT = g.Path({str(tmp_path)!r}); "
        "options = g.parser_of('').parse_args(sys.argv[1:]); "
        "sys.exit(g.run_script(options, 's', g.steps_of('one 60 one.py'), {}))"
    )
    words = [sys.executable, "-c", code, "--out", str(tmp_path), "--dry-run"]
    call = subprocess.Popen(words, start_new_session=True)
    log = tmp_path / "logs" / "one.log"
    while not (log.exists() and log.read_text()):
        assert call.poll() is None
        time.sleep(0.05)
    call.send_signal(signal.SIGTERM)
    assert call.wait(30.0) == INTERRUPTED
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["calls"][0][0]["status"] == INTERRUPTED
    assert (tmp_path / "results.tar.gz").exists()


@pytest.mark.parametrize("step", ALL_STEPS, ids=lambda step: step.name)
def test_commands_and_scripts_exist(step):
    first, *rest = step.command.split()
    if not first.endswith((TOOL, ".py")):
        first = rest.pop(0)
    options = {word for word in rest if word.startswith("--")}
    if first == TOOL:
        commands = get_command(app).commands  # type: ignore[attr-defined]
        known = {o for p in commands[rest[0]].params for o in p.opts}
    else:
        text = (gpu_session.ROOT / first).read_text()
        known = {option for option in options if f'"{option}"' in text}
    assert options <= known

"""A fleet in its folder: frozen, measured, killed, continued, published."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from evict_profile.drafting import DraftClock
from evict_profile.fit.fitted import fit_run as fit
from evict_profile.fleet import child, run
from evict_profile.fleet.run import FleetFolder, measure
from evict_profile.fleet.spec import jobs_of
from evict_profile.io import sole_writer
from evict_profile.records import replace
from evict_profile.sweep.store import Header, Store
from evict_profile.table import CostTable
from tests.command import evict, refused
from tests.fleet.conftest import NAME, SHORT, write_fleet
from tests.sweep.conftest import comparable

FLEET = ("fleet", "fleet.yaml", "--out", "fleet", "--tables", "tables")
EXIT_TIMEOUT_S = 120.0
MODELS = ["tiny", "tiny-qwen3"]


def until(ready):
    ends = time.monotonic() + EXIT_TIMEOUT_S
    while time.monotonic() < ends:
        if found := ready():
            return found
        time.sleep(0.1)
    raise AssertionError("waited in vain")


def sweeps_of(home):
    def is_own(words):
        return "evict_profile" in words and any(w.startswith(str(home)) for w in words)

    found = psutil.process_iter(["cmdline"])
    return [process for process in found if is_own(process.info["cmdline"] or [])]


def parts_of(home):
    paths = (home / "fleet").glob("*/run/parts/*.parquet")
    return {path: path.read_bytes() for path in paths}


def start(home, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "evict_profile", *FLEET, *more],
        cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )  # fmt: skip


def test_a_plan_is_frozen_and_printed(fleet_of, tmp_path):
    fleet_of(models=["tiny", "tiny-qwen3"], env={"A": "b c"})
    done = evict(*FLEET, "--plan-only", folder=tmp_path)
    assert done.exit_code == 0 and "2 jobs: 2 open" in done.stdout, done.output
    line, _ = (tmp_path / "fleet/commands.txt").read_text().splitlines()
    words = shlex.split(line)
    assert words[:4] == ["env", "A=b c", "evict-profile", "sweep"]
    assert words[-4:-2] == ["--out", str(tmp_path / "fleet" / NAME / "run")]
    assert evict(*FLEET, "--plan-only", folder=tmp_path).stdout == done.stdout


def test_a_changed_plan_is_refused_and_each_change_is_named(fleet_of, tmp_path):
    fleet_of()
    evict(*FLEET, "--plan-only", folder=tmp_path)
    fleet_of(tries=9, models=["tiny", "tiny-qwen3"])
    edited = {**SHORT, "stop": {**SHORT["stop"], "max_samples": 9}}
    Path("short.yaml").write_text(yaml.safe_dump(edited))
    says = refused(*FLEET, folder=tmp_path)
    assert f"{NAME}.sweep.stop.max_samples: 9 here, 7 there" in says
    assert "tiny-qwen3_short" in says
    assert "tries" not in says


def test_a_second_command_and_one_without_ray_are_refused(
    fleet_of, tmp_path, monkeypatch
):
    fleet_of()
    (tmp_path / "fleet").mkdir()
    with sole_writer(tmp_path / "fleet"):
        assert "another process is writing into it" in refused(*FLEET, folder=tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    says = refused(*FLEET, "--address", "auto", folder=tmp_path)
    assert "in a checkout: pip install '.[fleet]'" in says


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory):
    """A fleet that its commands.txt measured, as Slurm runs it."""
    home = tmp_path_factory.mktemp("measured")
    write_fleet(home)
    assert evict(*FLEET, "--plan-only", folder=home).exit_code == 0
    for line in (home / "fleet/commands.txt").read_text().splitlines():
        done = evict(*shlex.split(line)[2:], folder=home)
        assert done.exit_code == 0, done.output
    return home


@pytest.fixture
def measured(measured_once, fleet_of, tmp_path):
    """A copy of it: its folder and its job."""
    shutil.copytree(measured_once, tmp_path, dirs_exist_ok=True)
    [job] = jobs_of(fleet_of())
    return FleetFolder(tmp_path / "fleet"), job


@pytest.mark.slow
def test_whoever_measured_a_job_the_command_publishes_it_once(measured, tmp_path):
    folder, job = measured
    assert folder.run(job).done
    begun = evict(*FLEET, "--plan-only", folder=tmp_path)
    assert "1 jobs: 1 begun" in begun.stdout
    done = evict(*FLEET, folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert "1 jobs: 1 published" in done.stdout
    assert job.model.name in Path("fleet/tables.html").read_text()
    [table] = (tmp_path / "tables").rglob("*.json")
    assert CostTable.load(table).model == job.model
    # As when it was killed before the report, or the table, was there.
    for missing in (tmp_path / "fleet" / NAME / "report.html", table):
        missing.unlink()
        assert evict(*FLEET, folder=tmp_path).exit_code == 0
        assert list((tmp_path / "tables").rglob("*.json")) == [table]


@pytest.mark.slow
def test_a_table_that_the_sweep_made_is_published_without_a_fit(
    measured, tmp_path, monkeypatch
):
    folder, job = measured
    monkeypatch.setattr(run, "fit_run", None)
    folder.publish(job, tmp_path / "tables")
    [made] = folder.run(job).tables.rglob("*.json")
    assert folder.table(job).name == made.name
    assert CostTable.load(folder.table(job)) == CostTable.load(made)
    assert (folder.folder / job.name / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("lacks", ["table", "samples", "clocks"])
def test_a_run_is_fitted_where_its_sweep_made_no_table_of_all(
    measured, tmp_path, monkeypatch, lacks
):
    """As when it was killed before its table, or its table is of fewer samples."""
    folder, job = measured
    own, fits = folder.run(job), []
    if lacks == "table":
        shutil.rmtree(own.tables)
    if lacks == "samples":
        frame = own.store.frame()
        monkeypatch.setattr(Store, "frame", lambda store: frame.iloc[:-1])
    if lacks == "clocks":
        own.store.add_clock(DraftClock(1, (0.0, 9.0), 5.0, 1.0))
    monkeypatch.setattr(run, "fit_run", lambda store: fits.append(store) or fit(store))
    folder.publish(job, tmp_path / "tables")
    assert len(fits) == 1 and folder.table(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "tries", "minutes", "says"),
    [
        ({"SCRIPTED_SLOPE": "0"}, 2, 10.0, "union test failed.*; tried 2 times, see "),
        ({"SCRIPTED_SLEEP": "1000"}, 1, 0.001, "it hangs"),
    ],
)
def test_a_job_that_fails_says_why(frozen, monkeypatch, env, tries, minutes, says):
    monkeypatch.setattr(child, "GRACE_S", 4.0)
    folder, _, job = frozen
    engine = replace(job.engine, env=env)
    own = folder.run(replace(job, engine=engine))
    assert not own.done
    why = measure(own, tries, minutes)
    assert re.match(says, why), why
    until(lambda: not psutil.Process().children(recursive=True))


def test_a_job_whose_clocks_are_missing_is_not_done(frozen, monkeypatch):
    """Where its runner can draft; its samples alone make no table of steps."""
    monkeypatch.setattr(run, "is_finished", lambda store: True)
    own = frozen[0].run(frozen[2])
    header = {"sweep": own.job.sweep, "model": own.job.model, "fingerprint": {}}
    header |= {"union_test": {}, "started_unix": 1.0}
    own.store.create(Header(**header, opened={"clocks": True}))
    assert not own.done
    own.store.add_clock(DraftClock(1, (0.0, 9.0), 5.0, 1.0))
    assert own.done


@pytest.mark.slow
def test_minutes_end_a_try_and_the_next_continues(frozen):
    own = frozen[0].run(frozen[2])
    assert measure(own, 1, 0.0001).startswith("open after 0.0001 min; tried 1 times")
    assert measure(own, 1, 10.0) == ""


@pytest.mark.slow
def test_whatever_ends_a_sweep_or_the_command_it_is_continued(tmp_path, fleet_of):
    """The samples stored before stay, and are those of a fleet that nobody ended."""
    fleet_of(env={"SCRIPTED_SLEEP": "0.02"}, models=MODELS)
    killed = start(tmp_path)
    before = until(lambda: len(parts_of(tmp_path)) >= 2 and parts_of(tmp_path))
    [sweep] = sweeps_of(tmp_path)
    sweep.send_signal(signal.SIGKILL)
    until(lambda: len(parts_of(tmp_path)) > len(before) + 1)  # tried again
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    until(lambda: not sweeps_of(tmp_path))
    between = parts_of(tmp_path)
    stopped = start(tmp_path)
    until(lambda: any(MODELS[1] in str(path) for path in parts_of(tmp_path)))
    # As a terminal sends it: to the whole process group.
    os.killpg(stopped.pid, signal.SIGINT)
    printed, _ = stopped.communicate(timeout=EXIT_TIMEOUT_S)
    assert stopped.returncode == 130, printed
    assert "is kept, the same command continues it" in printed
    until(lambda: not sweeps_of(tmp_path))
    late = parts_of(tmp_path)
    done = evict(*FLEET, folder=tmp_path)
    assert "2 jobs: 2 published" in done.stdout, done.output
    after = parts_of(tmp_path)
    assert before.items() <= between.items() <= late.items() <= after.items()
    first, last = ({p for p in each if NAME in str(p)} for each in (between, after))
    assert first < last, "the sweep went on without its fleet"
    line = (tmp_path / "fleet/commands.txt").read_text().splitlines()[0]
    words, untouched = shlex.split(line), tmp_path / "untouched"
    words[words.index("--out") + 1] = str(untouched)
    done = evict(*words[words.index("sweep") :], folder=tmp_path)
    assert done.exit_code == 0, done.output
    whole = Store(tmp_path / "fleet" / NAME / "run").frame()
    assert comparable(whole).equals(comparable(Store(untouched).frame()))

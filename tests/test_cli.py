"""The command line: whole pipelines, and mistakes in one sentence."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from evict_profile import __main__
from evict_profile.fit import gates
from evict_profile.io import data_root
from tests.command import evict, refused

ROOFLINE = {
    "name": "short",
    "runner": "roofline",
    "grid": {"width": [1, 2, 4, 8, 16, 32], "union": 5, "context": [64], "batch": [1]},
}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A folder in which `sweep` has run on a datasheet."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "short.yaml").write_text(yaml.safe_dump(ROOFLINE))
    done = evict(
        "sweep", "tiny", "--plan", "short.yaml", "--out", "run",
        "--tables", "tables", folder=folder,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "table: tables/h200-sxm/tiny/roofline/1.0.0.json" in done.stdout
    assert "the union axis: median held-out error" in done.stdout
    assert f"report, for any browser: {folder / 'run/report.html'}" in done.stdout
    assert "\nDrafting K = 3 pays at batch 1 where a step commits more" in done.stdout
    assert done.stdout.endswith("1.0.0.json --accept 3:LENGTH\n")
    return folder


TABLE = "tables/h200-sxm/tiny/roofline/1.0.0.json"
H200 = (
    data_root()
    / "cost_tables/composed/nvidia-h200/qwen3-30b-a3b"
    / "sglang-0.5.14-bfloat16-tp1-ep1/1.0.0.json"
)
ADVISE = ("advise", H200, "--accept")


def test_a_sweep_writes_table_samples_and_report(profiled):
    assert (profiled / TABLE).is_file()
    assert (profiled / TABLE).with_suffix(".parquet").is_file()
    assert "<svg" in (profiled / "run/report.html").read_text()


def test_a_grid_that_no_fit_can_use_is_refused_before_it_is_measured(tmp_path):
    grid = {"width": [1, 8], "union": 2, "context": [64], "batch": [1]}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump({**ROOFLINE, "grid": grid}))
    words = ("sweep", "tiny", "--plan", "few.yaml", "--out", "run")
    said = refused(*words, folder=tmp_path)
    assert "has 3 forced and 2 non-MoE cells, and a fit needs 8 and 3" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("minutes", ["inf", "0"])
def test_a_refused_sweep_leaves_its_report(profiled, tmp_path, monkeypatch, minutes):
    """Marked as refused. There is no table, and the reason is said once."""
    monkeypatch.setattr(gates, "MAX_HALF_WIDTH", -1.0)
    shutil.copytree(profiled / "run", tmp_path / "run")
    words = ("sweep", "tiny", "--plan", profiled / "short.yaml", "--out", "run")
    done = evict(*words, "--max-minutes", minutes, folder=tmp_path)
    assert done.exit_code == 2
    page = (tmp_path / "run/report.html").read_text()
    assert "Refused by the gate half-width" in page
    assert done.stdout.count("FAILED half-width: 95 % intervals") == 1
    assert "report: run/report.html" in done.stderr and "95 %" not in done.stderr
    assert ("the same command continues" in done.output) == (minutes == "0")
    assert not (tmp_path / "cost_tables").exists()


AGAIN = ("sweep", "tiny", "--plan", "short.yaml", "--out", "run")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", TABLE), "tiny on h200-sxm, computed from a data sheet"),
        (("show", TABLE), "95 % interval"),
        (("show", TABLE), "not known"),
        (("advise", TABLE, "--accept", "0.7"), "costs are computed from a data sheet"),
        (("check", TABLE), "schema, hash and samples: valid"),
        # A runner without noise has not drifted.
        (("check", TABLE, "--recheck"), "this machine against the table: same"),
        (("diff", TABLE, TABLE), "no difference"),
        (("report", TABLE, "--out", "page.html"), "report: page.html"),
        (AGAIN, "continuing run"),
    ],
)
def test_a_sweep_is_read_again(profiled, words, said):
    parts = sorted((profiled / "run/parts").iterdir())
    done = evict(*words, folder=profiled)
    assert done.exit_code == 0, done.stderr
    assert said in done.stdout
    assert sorted((profiled / "run/parts").iterdir()) == parts


@pytest.mark.parametrize(
    "words",
    [
        *(("show", TABLE), ("show", "tables"), ("diff", TABLE, TABLE)),
        ("advise", TABLE, "--accept", "0.7"),
    ],
    ids=" ".join,
)
def test_json_is_one_document_alone(profiled, words):
    done = evict(*words, "--json", folder=profiled)
    assert done.exit_code == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict | list)
    assert not done.stderr


@pytest.mark.slow
def test_diff_names_what_changed(profiled, tmp_path):
    grid = {**ROOFLINE["grid"], "context": [64, 128]}
    other = {**ROOFLINE, "engine": {"gpu": "a100-sxm-80gb"}, "grid": grid}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    words = ("sweep", "tiny", "--plan", "other.yaml", "--out", "run")
    done = evict(*words, folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    done = evict("fit", "run", "--tables", "tables", folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    table = TABLE.replace("h200-sxm", "a100-sxm-80gb")
    done = evict("diff", profiled / TABLE, table, folder=tmp_path)
    assert done.exit_code == 1
    assert "key gpu: h200-sxm before, a100-sxm-80gb after" in done.stdout
    assert "step cost +" in done.stdout
    assert "batch 1, context 128: step cost only after" in done.stdout


def test_no_gpu_is_said_when_one_is_asked_for(tmp_path):
    """With the fix; where there is a GPU, there is nothing to test."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, so asking for one succeeds")
    words = ("sweep", "tiny", "--plan", "tiny", "--device", "cuda")
    assert "pass --device cpu" in refused(*words, folder=tmp_path)


def test_doctor_names_the_machine(tmp_path):
    done = evict("doctor", folder=tmp_path)
    assert done.exit_code == 0
    assert "grouped_mm present" in done.stdout
    assert "qwen3-30b-a3b" in done.stdout or "tiny" in done.stdout


def test_a_fit_answers_in_json(profiled):
    said = json.loads(evict("fit", "run", "--json", folder=profiled).stdout)
    assert 0.0 <= said["held_out"]["hinge"]["median"] < 0.1
    judged = {gate["name"] for gate in said["gates"]}
    assert "coverage" in judged
    assert not judged & {"drift", "A/A floor"}, "a data sheet cannot fail them"


def test_the_list_says_that_the_error_of_a_data_sheet_is_unknown(profiled):
    listed = evict("show", "tables", folder=profiled).stdout
    assert re.search(r"datasheet +unknown +\d of \d", listed)


def test_the_list_has_each_table_once(tmp_path):
    for folder in ("own", "installed"):
        shutil.copytree(H200.parent, tmp_path / folder)
    listed = evict("show", "own", "installed", folder=tmp_path).stdout
    assert listed.count("1.0.0.json") == 1 and "/own/1.0.0.json" in listed


def test_profile_is_another_name_of_sweep(profiled):
    words = ("profile", *AGAIN[1:])
    assert "continuing run" in evict(*words, folder=profiled).stdout
    assert " profile " not in evict("--help", folder=profiled).stdout


def test_a_mistyped_name_is_told_before_libraries_load(tmp_path):
    commands = [
        ["show", "none"],
        ["check", "none", "--recheck"],
        ["replay", str(H200), "none"],
        ["replay", ".", "--synthetic", "easy"],
        ["replay", str(H200)],
        ["replay", str(H200), "--synthetic", "none"],
        ["replay", str(H200), "--synthetic", "easy", "--part", "3/2"],
        ["advise", str(H200), "--accept", "none"],
        ["advise", str(H200), "--accept", "0.7", "--batch", "0"],
        ["advise", "--accept", "none", "--model", "glm-4.5"],
        ["advise", "--accept", "0.7", "--accept", "0.6"],
        ["estimate"],
        ["estimate", "--model", "tiny", "--gpu", "h200", "--engine", "a"],
        ["probe", "http://localhost:9", "--out", "r.jsonl"],
        ["import", "none.csv", "--model", "tiny", "--gpu", "a"],
        ["sweep", "none"],
        ["sweep", "tiny", "--plan", "none"],
        ["fleet", "none.yaml"],
    ]
    code = (
        "import contextlib, sys; from evict_profile.cli import app\n"
        f"for words in {commands}:\n"
        "    with contextlib.suppress(SystemExit): app(words)\n"
        "print(sorted({'torch', 'pandas', 'scipy', 'pyarrow'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "[]\n"
    assert done.stderr.count("error: ") == len(commands)


def started(*words, folder, stdout=subprocess.PIPE, **environment):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "evict_profile", *map(str, words)],
        cwd=folder, env={**os.environ, **environment}, text=True,
        stdout=stdout, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_what_an_encoding_lacks_ends_no_command(tmp_path):
    """As cron and some containers have it: ASCII alone."""
    process = started(*ADVISE, "0.7", folder=tmp_path, PYTHONIOENCODING="ascii")
    said, failed = process.communicate()
    assert process.returncode == 0, failed
    assert said.startswith("Estimated, not measured: K = 3 pays ")


@pytest.mark.parametrize("words", [("show", H200), ("--version",), ("--help",)])
def test_a_full_disk_is_named(words, tmp_path):
    """Also while the words are parsed."""
    with Path("/dev/full").open("w") as full:
        process = started(*words, folder=tmp_path, stdout=full)
        _, said = process.communicate()
    assert process.returncode == 2
    assert said.startswith("error: stdout: No space left on device; free")


def test_ctrl_c_keeps_the_samples_and_exits_with_130(tmp_path):
    """The sample in flight ends, the round so far is stored, and no table is made."""
    scripted = Path(__file__).with_name("runners") / "scripted.py"
    sweep = {**ROOFLINE, "runner": str(scripted)}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(sweep))
    words = ("sweep", "tiny", "--plan", "own.yaml", "--out", "run")
    process = started(*words, folder=tmp_path, SCRIPTED_SLEEP="0.05")
    assert process.stdout
    for line in process.stdout:
        if line.startswith("round 1"):
            process.send_signal(signal.SIGINT)
            break
    _, said = process.communicate()
    assert process.returncode == 130
    assert "the same command continues it" in said
    assert list((tmp_path / "run/parts").glob("00001-*.parquet"))
    assert not (tmp_path / "cost_tables").exists()


def test_ctrl_c_says_that_nothing_is_half_done(tmp_path):
    process = started("replay", H200, "--synthetic", "easy", folder=tmp_path)
    assert process.stderr
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.endswith("interrupted; no file is left half written\n")
    assert not list(tmp_path.iterdir())


def test_a_foreign_file_among_tables_is_named(profiled, tmp_path):
    home = tmp_path / "tables/h200-sxm/tiny/roofline"
    home.mkdir(parents=True)
    (home / "latest.json").write_text("{}")
    words = ("fit", profiled / "run", "--tables", tmp_path / "tables")
    assert "latest.json: is not named by a version" in refused(*words, folder=tmp_path)


def test_a_table_is_written_for_sglang(workload_table, tmp_path):
    out = tmp_path / "deep" / "sps.json"
    words = ("export", workload_table, "--for", "sglang-sps", "--out", out)
    done = evict(*words, folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "95 % interval" in done.stdout
    sps = json.loads(out.read_text())
    assert len(sps["m_probes"]) == len(sps["theta_seconds"])


def test_ctrl_c_while_the_command_line_loads_is_one_sentence(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evict_profile.cli.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted; no file is left half written\n"

"""A recording ends the same however often it was cut short, and asks nothing twice."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from evict_profile.budgets.load import load_budgets
from evict_profile.budgets.plan import BudgetPlan
from evict_profile.budgets.record import BudgetRecording, largest
from evict_profile.budgets.schema import BUDGETS, COLUMNS, NONE, RULES
from evict_profile.errors import ConfigError, Interrupted, RunnerError, StoreError
from evict_profile.runner import RunnerCrash
from evict_profile.traces.recording import carry_out
from tests.budgets.fake_runner import ABOUT, EXPERTS, KL, LAYERS, MASS, routing_us

ROOT = Path(__file__).parents[2]
FAKE_RUNNER = Path(__file__).parent / "fake_runner.py"
PLAN = BudgetPlan(
    prompts=1,
    tokens=4,
    budgets=(6, 8),
    rules=("mass", "static", "layers", "oracle"),
    depth=2,
    topk=3,
    nodes=12,
)
OPTIONS = [
    "--prompts=1", "--tokens=4", "--budget=6", "--budget=8", "--rule=mass",
    "--rule=static", "--rule=layers", "--rule=oracle",
    "--depth=2", "--topk=3", "--nodes=12",
]  # fmt: skip
BUDGETED = tuple(rule for rule in RULES if rule != NONE)
REPLIES = 36
"""Nine settings, one prompt of two workloads, decoded and given."""
EVERY_RULE = replace(PLAN, tokens=1, budgets=(6,), rules=BUDGETED, workloads=("code",))
MASS_6 = "[6, 6, 6] substitution mass 0.0 None"
LEARNING, ROUTING, REPLY = (
    "kl 1 of 1 [16, 4, 16] substitution top-k 0.5 None",
    f"routing {MASS_6}",
    f"code 0 given {MASS_6}",
)
"""Lines of the journal in each part of a recording."""

Facts = dict[str, Any]


def recorded(out: Path, plan: BudgetPlan = PLAN) -> pa.Table:
    """Record with the fake runner; the file as a table."""
    quiet, runner = Console(quiet=True), str(FAKE_RUNNER)
    carry_out(BudgetRecording, ROOT, out, plan, quiet, runner=runner)
    return pq.read_table(out)


def notes(table: pa.Table) -> Facts:
    """A recording's metadata."""
    found: Facts = json.loads(table.schema.metadata[BUDGETS.key])
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """A recording that nothing cut short."""
    return recorded(tmp_path_factory.mktemp("whole") / "budgets.parquet")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a recording goes."""
    return tmp_path / "budgets.parquet"


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the runner was asked, one line each."""
    path = tmp_path / "journal"
    monkeypatch.setenv("BUDGETED_JOURNAL", str(path))
    return lambda: path.read_text().splitlines()


def test_all_that_was_asked_for_is_recorded(
    out: Path, journal: Callable[[], list[str]]
) -> None:
    """Each reply and each clock once: clocks, what is learnt, routing, replies."""
    recorded(out)
    lines = journal()
    kinds = [line.split()[0] for line in lines[:15]]
    assert kinds == ["clock", "mass", *["kl"] * 6, *["routing"] * 6, "code"]
    assert LEARNING in lines and ROUTING in lines
    assert all(line.split()[0] in ("code", "prose") for line in lines[14:])
    assert len(set(lines[14:])) == len(lines[14:]) == REPLIES


def test_what_no_rule_needs_is_not_learnt(
    out: Path, journal: Callable[[], list[str]]
) -> None:
    """Neither masses nor damages."""
    recorded(out, replace(PLAN, rules=("mass",)))
    assert {line.split()[0] for line in journal()} == {
        "clock",
        "routing",
        "code",
        "prose",
    }


def test_what_a_layer_is_seen_to_lose_gets_it_experts(out: Path) -> None:
    """Four times the damage, more of the total; the smallest that was tried is the
    least, and there nothing is left to share out."""
    plan = replace(EVERY_RULE, rules=("layers",), budgets=(4, 8))
    _, least, more = notes(recorded(out, plan))["settings"]
    assert least["per_layer"] == [4, 4, 4]
    few, some, many = more["per_layer"]
    assert 4 <= few <= some < many
    assert few + some + many == 24


def test_what_is_recorded_can_be_read(out: Path) -> None:
    """As the report reads it."""
    recorded(out)
    found = load_budgets(out)
    assert [each.name for each in found.settings][:3] == ["none", "mass 6", "mass 8"]
    assert found.about.model == "scripted"


def test_a_row_is_a_step_as_the_runner_told_it(whole: pa.Table) -> None:
    """With the columns of the schema, and lists as long as what was committed."""
    assert whole.schema.equals(COLUMNS)
    for row in whole.to_pylist():
        lists = [row[name] for name in ("kl", "agrees", "loss", "plain_loss")]
        assert [len(values) for values in lists] == [row["committed"]] * 4
        assert [1.0 + kl for kl in row["kl"]] == row["loss"]
    assert len(whole) == 3 * REPLIES


def test_the_metadata_says_what_was_recorded_on_what(whole: pa.Table) -> None:
    """Facts, clocks, and what was learnt, word for word."""
    told = notes(whole)
    assert told["schema"] == BUDGETS.schema
    assert told["about"] == {**ABOUT, "depth": 2, "topk": 3, "nodes": 12}
    assert [clock["batch"] for clock in told["clocks"]] == [1]
    layer_2 = [told["learnt"][f"layer-2-{budget}"]["kl"] for budget in (4, 8)]
    assert told["learnt"]["mass"] == {"mass": MASS}
    assert layer_2 == [KL[2] / 4, KL[2] / 8]
    assert told["recorded"]["rules"] == list(PLAN.rules)


def test_a_setting_holds_its_budgets_and_its_clock(out: Path) -> None:
    """None has all experts; the others' add up, and take what was timed."""
    none, *settings = notes(recorded(out, EVERY_RULE))["settings"]
    assert none == {
        "rule": "none",
        "budget": EXPERTS,
        "per_layer": [EXPERTS] * LAYERS,
        "routing_us": 0.0,
    }
    assert [each["rule"] for each in settings] == list(BUDGETED)
    for each in settings:
        assert sum(each["per_layer"]) == LAYERS * 6
        differs = each["rule"].endswith("layers")
        assert (len(set(each["per_layer"])) > 1) == differs
        assert each["routing_us"] > 0.0


TOLD = {
    "none": "None substitution mass 0.0 None",
    "mass": "[6, 6, 6] substitution mass 0.0 None",
    "truncation": "[6, 6, 6] truncation mass 0.0 None",
    "path": "[6, 6, 6] substitution mass 1.0 None",
    "sqrt-path": "[6, 6, 6] substitution mass 0.5 None",
    "top-k": "[6, 6, 6] substitution top-k 0.0 None",
    "sqrt-path+top-k": "[6, 6, 6] substitution top-k 0.5 None",
    "oracle": "[6, 6, 6] substitution oracle 0.0 None",
}


def test_the_runner_is_told_what_each_rule_means(
    out: Path, journal: Callable[[], list[str]]
) -> None:
    """Each differs from mass in what its name adds up."""
    recorded(out, EVERY_RULE)
    told = {line.removeprefix("code 0 decoded ") for line in journal()}
    assert set(TOLD.values()) <= told
    by_layers = [line for line in told if line.startswith("[") and "[6, 6" not in line]
    rest = sorted(line.partition("] ")[2] for line in by_layers)
    assert rest == ["substitution mass 0.0 None", "substitution top-k 0.5 None"]


def test_a_static_ranking_is_of_what_was_learnt(
    out: Path, journal: Callable[[], list[str]]
) -> None:
    """The experts of each layer that got most on other text."""
    recorded(out, EVERY_RULE)
    kept = [sorted(sorted(range(EXPERTS), key=lambda e: -own[e])[:6]) for own in MASS]
    assert len({tuple(own) for own in kept}) > 1
    assert f"code 0 decoded [6, 6, 6] substitution kept 0.0 {kept}" in journal()


@pytest.mark.parametrize(
    ("mass", "count", "kept"),
    [
        ([0.1, 0.6, 0.3], 2, [1, 2]),
        ([0.2, 0.4, 0.2, 0.2], 2, [0, 1]),
        ([0.5, 0.5], 2, [0, 1]),
    ],
)
def test_of_equals_the_first_is_kept(
    mass: list[float], count: int, kept: list[int]
) -> None:
    """In order of index."""
    assert largest(mass, count) == kept


def test_the_oracle_takes_as_long_as_mass_does(
    out: Path, journal: Callable[[], list[str]]
) -> None:
    """Nobody can run it, so that it is not timed; also where mass is not recorded."""
    table = recorded(out, replace(EVERY_RULE, rules=("oracle",)))
    ask = {"per_layer": [6] * LAYERS, "mode": "substitution", "ranking": "mass"}
    expected = routing_us({**ask, "exponent": 0.0, "kept": None})
    assert notes(table)["settings"][1]["routing_us"] == expected
    assert [line for line in journal() if line.startswith("routing")] == [ROUTING]


def test_a_finished_recording_is_left_alone(
    out: Path, journal: Callable[[], list[str]]
) -> None:
    """The same command asks the runner for nothing."""
    recorded(out)
    before, asked = out.read_bytes(), journal()
    recorded(out)
    assert (out.read_bytes(), journal()) == (before, asked)


@pytest.mark.parametrize("line", [LEARNING, ROUTING, REPLY])
def test_a_runner_that_dies_costs_what_it_was_asked(
    out: Path,
    whole: pa.Table,
    journal: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
) -> None:
    """The next command goes on there, asks nothing else twice, and ends the same."""
    with monkeypatch.context() as crashing:
        crashing.setenv("BUDGETED_CRASH", line)
        with pytest.raises(RunnerCrash, match="ended with status 7"):
            recorded(out)
    assert not out.exists()
    assert recorded(out).equals(whole, check_metadata=True)
    assert sorted(journal()) == sorted([*set(journal()), line])


@pytest.mark.parametrize("line", [LEARNING, ROUTING, REPLY])
def test_ctrl_c_keeps_what_was_asked_last(
    out: Path,
    whole: pa.Table,
    journal: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
) -> None:
    """One sentence; then the rest, nothing twice, and the same recording as ever."""
    with monkeypatch.context() as interrupting:
        interrupting.setenv("BUDGETED_SIGNAL", f"{line}={signal.SIGINT.value}")
        with pytest.raises(Interrupted, match=r"parts is kept, the same command con"):
            recorded(out)
    assert journal()[-1] == line
    assert recorded(out).equals(whole, check_metadata=True)
    assert len(set(journal())) == len(journal())


def test_ctrl_c_while_clocks_are_taken_leaves_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take seconds, and would stand in the way of another plan."""
    monkeypatch.setenv("BUDGETED_SIGNAL", f"clock 1={signal.SIGINT.value}")
    with pytest.raises(Interrupted, match="before the first reply; nothing is kept"):
        recorded(out)
    assert not list(out.parent.iterdir())


def test_the_command_records_and_a_kill_costs_one_reply(
    out: Path,
    whole: pa.Table,
    journal: Callable[[], list[str]],
    tmp_path: Path,
) -> None:
    """Options reach the runner; what was stored before the kill is not touched."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {FAKE_RUNNER}\n")
    python.chmod(0o755)
    command = [sys.executable, "-m", "evict_profile", "trace-budgets", "worlds/stdlib"]
    done = subprocess.run(
        [*command, "--out", str(out), "--python", str(python), *OPTIONS],
        cwd=ROOT,
        env={**os.environ, "BUDGETED_SIGNAL": f"{REPLY}={signal.SIGKILL.value}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    stored = {path: path.stat().st_mtime_ns for path in out.parent.rglob("*.parquet")}
    assert len(stored) == 5
    assert recorded(out).equals(whole, check_metadata=True)
    assert sorted(journal()) == sorted([*set(journal()), REPLY])


@pytest.mark.parametrize("finished", [False, True])
def test_another_recording_is_refused_by_name(
    out: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """Cut short or finished, it is not continued as something else."""
    with monkeypatch.context() as crashing:
        crashing.setenv("BUDGETED_CRASH", "" if finished else REPLY)
        if finished:
            recorded(out)
        else:
            with pytest.raises(RunnerCrash):
                recorded(out)
    with pytest.raises(StoreError, match=r"tokens: 5 here, 4 there"):
        recorded(out, replace(PLAN, tokens=5))
    with pytest.raises(StoreError, match=r"rules: .*mass.* here, .*mass.* there"):
        recorded(out, replace(PLAN, rules=("mass",)))
    monkeypatch.setenv("BUDGETED_DEVICE", "stone")
    with pytest.raises(StoreError, match="device: stone here, paper there"):
        recorded(out)


@pytest.mark.parametrize(
    ("variable", "field", "sentence"),
    [
        ("LACKING", "union", "answered a step without union; a step needs position"),
        ("LACKING", "plain_loss", "answered a step without plain_loss"),
        ("ODD", "kl", "answered a step that is none"),
        ("ODD", "position", "answered a step that is none"),
    ],
)
def test_a_step_that_is_none_is_refused(
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    field: str,
    sentence: str,
) -> None:
    """In one sentence, and it is not stored."""
    monkeypatch.setenv(f"BUDGETED_{variable}", field)
    with pytest.raises(RunnerError, match=sentence) as raised:
        recorded(out)
    assert "\n" not in str(raised.value)
    assert not list(out.parent.rglob("*.parquet"))


def test_a_plan_beyond_the_world_is_refused(out: Path) -> None:
    """Every second prompt is kept for learning."""
    with pytest.raises(ConfigError, match=r"--prompts 15: .* has text for 14"):
        recorded(out, replace(PLAN, prompts=15))
    with pytest.raises(ConfigError, match=r"--budget 16: .* run 2 of 16 .* 2 to 15"):
        recorded(out, replace(PLAN, budgets=(16,)))

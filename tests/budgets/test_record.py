"""What a budget recording asks its runner, what it stores, and how it continues.

tests/traces holds what all recordings share: locks, refusals, damaged parts, kills.
"""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from evict_profile.budgets.load import load_budgets
from evict_profile.budgets.plan import BudgetPlan
from evict_profile.budgets.record import BudgetRecording, largest
from evict_profile.budgets.schema import BUDGETS, COLUMNS, NONE, RULES
from evict_profile.errors import Interrupted, RunnerError, StoreError
from evict_profile.records import Facts, to_mapping
from evict_profile.runner import RunnerCrash
from evict_profile.traces.recording import carry_out
from tests.command import evict
from tests.traces import fake_runner
from tests.traces.fake_runner import KL, MASS, routing_us
from tests.traces.synthetic import ABOUT

ROOT = Path(__file__).parents[2]
LAYERS, EXPERTS = ABOUT.layers, ABOUT.experts
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


class Recorded(NamedTuple):
    """A recording's file, its metadata, and what the runner was asked."""

    table: pa.Table
    metadata: Facts
    asked: list[str]


def record(out, plan=PLAN):
    """Record with the fake runner; the file as a table."""
    quiet, runner = Console(quiet=True), str(fake_runner.PATH)
    carry_out(BudgetRecording, ROOT, out, plan, quiet, runner=runner)
    return pq.read_table(out)


def recorded(folder, plan=PLAN):
    """Record, and keep what was asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_JOURNAL", str(folder / "journal"))
        table = record(folder / "budgets.parquet", plan)
    metadata = json.loads(table.schema.metadata[BUDGETS.key])
    return Recorded(table, metadata, (folder / "journal").read_text().splitlines())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(folder):
    """A recording that nothing cut short."""
    return recorded(folder)


@pytest.fixture(scope="module")
def every_rule(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("rules"), EVERY_RULE)


def test_all_is_asked_once_and_in_order(whole):
    """Clocks, what is learnt, routing, replies."""
    lines = whole.asked
    kinds = [line.split()[0] for line in lines[:15]]
    assert kinds == ["clock", "mass", *["kl"] * 6, *["routing"] * 6, "code"]
    assert LEARNING in lines and ROUTING in lines
    assert all(line.split()[0] in ("code", "prose") for line in lines[14:])
    assert len(set(lines[14:])) == len(lines[14:]) == REPLIES


def test_what_no_rule_needs_is_not_learnt(tmp_path):
    asked = recorded(tmp_path, replace(PLAN, rules=("mass",))).asked
    kinds = {line.split()[0] for line in asked}
    assert kinds == {"clock", "routing", "code", "prose"}


def test_what_a_layer_is_seen_to_lose_gets_it_experts(tmp_path):
    """Four times the damage, more of the total; the smallest that was tried is the
    least, and there nothing is left to share out."""
    plan = replace(EVERY_RULE, rules=("layers",), budgets=(4, 8))
    _, least, more = recorded(tmp_path, plan).metadata["settings"]
    assert least["per_layer"] == [4, 4, 4]
    few, some, many = more["per_layer"]
    assert 4 <= few <= some < many
    assert few + some + many == 24


def test_a_row_is_a_step_as_the_runner_told_it(whole, folder):
    """With the columns of the schema, and as the report reads it."""
    assert whole.table.schema.equals(COLUMNS)
    for row in whole.table.to_pylist():
        lists = [row[name] for name in ("kl", "agrees", "loss", "plain_loss")]
        assert [len(values) for values in lists] == [row["committed"]] * 4
        assert [1.0 + kl for kl in row["kl"]] == row["loss"]
    assert len(whole.table) == 3 * REPLIES
    settings = load_budgets(folder / "budgets.parquet").settings
    assert [each.name for each in settings][:3] == ["none", "mass 6", "mass 8"]


def test_the_metadata_says_what_was_recorded_on_what(whole):
    """Facts, clocks, and what was learnt, word for word."""
    metadata = whole.metadata
    assert metadata["schema"] == BUDGETS.schema
    told = {"depth": 2, "topk": 3, "nodes": 12, "reference_us": 100.0}
    assert metadata["about"] == {**to_mapping(ABOUT), **told}
    assert [clock["batch"] for clock in metadata["clocks"]] == [1]
    layer_2 = [metadata["learnt"][f"layer-2-{budget}"]["kl"] for budget in (4, 8)]
    assert metadata["learnt"]["mass"] == {"mass": MASS}
    assert layer_2 == [KL[2] / 4, KL[2] / 8]
    assert metadata["recorded"]["rules"] == list(PLAN.rules)


def test_a_setting_holds_its_budgets_and_its_clock(every_rule):
    """None has all experts; the others' add up, and take what was timed."""
    none, *settings = every_rule.metadata["settings"]
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
    "None substitution mass 0.0 None",
    MASS_6,
    "[6, 6, 6] truncation mass 0.0 None",
    "[6, 6, 6] substitution mass 1.0 None",
    "[6, 6, 6] substitution mass 0.5 None",
    "[6, 6, 6] substitution top-k 0.0 None",
    "[6, 6, 6] substitution top-k 0.5 None",
    "[6, 6, 6] substitution oracle 0.0 None",
}


def test_the_runner_is_told_what_each_rule_means(every_rule):
    """Each differs from mass in what its name adds up; static keeps the experts of
    each layer that got most on other text."""
    told = {line.removeprefix("code 0 decoded ") for line in every_rule.asked}
    assert told >= TOLD
    by_layers = [line for line in told if line.startswith("[") and "[6, 6" not in line]
    rest = sorted(line.partition("] ")[2] for line in by_layers)
    assert rest == ["substitution mass 0.0 None", "substitution top-k 0.5 None"]
    kept = [sorted(sorted(range(EXPERTS), key=lambda e: -own[e])[:6]) for own in MASS]
    assert len({tuple(own) for own in kept}) > 1
    assert f"[6, 6, 6] substitution kept 0.0 {kept}" in told


@pytest.mark.parametrize(
    ("mass", "kept"), [([0.1, 0.6, 0.3], [1, 2]), ([0.2, 0.4, 0.2, 0.2], [0, 1])]
)
def test_of_equals_the_first_is_kept(mass, kept):
    assert largest(mass, 2) == kept


def test_the_oracle_takes_as_long_as_mass_does(tmp_path):
    """Nobody can run it, so that it is not timed; also where mass is not recorded."""
    found = recorded(tmp_path, replace(EVERY_RULE, rules=("oracle",)))
    ask = {"per_layer": [6] * LAYERS, "mode": "substitution", "ranking": "mass"}
    expected = routing_us({**ask, "exponent": 0.0, "kept": None})
    assert found.metadata["settings"][1]["routing_us"] == expected
    assert [line for line in found.asked if line.startswith("routing")] == [ROUTING]


@pytest.mark.parametrize("line", [LEARNING, REPLY])
def test_a_runner_that_dies_costs_what_it_was_asked(tmp_path, whole, line):
    """The next command goes on there, asks nothing else twice, and ends the same; its
    clocks are told by the reference of the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_CRASH", line)
        with pytest.raises(RunnerCrash, match="ended with status 7"):
            recorded(tmp_path)
        patch.delenv("FAKE_CRASH")
        patch.setenv("FAKE_REFERENCE", "200")
        table, _, asked = recorded(tmp_path)
    assert table.equals(whole.table, check_metadata=True)
    assert sorted(asked) == sorted([*set(asked), line])


def test_ctrl_c_keeps_what_was_asked_last(tmp_path, whole):
    """One sentence; then the rest, nothing twice, and the same recording as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_SIGNAL", f"{ROUTING}={signal.SIGINT.value}")
        with pytest.raises(Interrupted, match=r"parts is kept, the same command con"):
            recorded(tmp_path)
    table, _, asked = recorded(tmp_path)
    assert table.equals(whole.table, check_metadata=True)
    assert len(set(asked)) == len(asked)


def test_ctrl_c_while_clocks_are_taken_leaves_nothing(tmp_path, monkeypatch):
    """They take seconds, and would stand in the way of another plan."""
    monkeypatch.setenv("FAKE_SIGNAL", f"clock 1={signal.SIGINT.value}")
    with pytest.raises(Interrupted, match="before the first reply; nothing is kept"):
        record(tmp_path / "budgets.parquet")
    assert not list(tmp_path.iterdir())


def test_the_command_records_and_then_leaves_alone(tmp_path, whole, monkeypatch):
    """Options reach the runner; the same command again asks it for nothing, and
    another plan is refused by name."""
    python, out = tmp_path / "python", tmp_path / "budgets.parquet"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {fake_runner.PATH}\n")
    python.chmod(0o755)
    monkeypatch.setenv("FAKE_JOURNAL", str(tmp_path / "journal"))
    words = ("trace-budgets", "worlds/stdlib", "--out", out, "--python", python)
    for _ in range(2):
        done = evict(*words, *OPTIONS, folder=ROOT)
        assert done.exit_code == 0, done.stderr
        assert pq.read_table(out).equals(whole.table, check_metadata=True)
        assert (tmp_path / "journal").read_text().splitlines() == whole.asked
    with pytest.raises(StoreError, match=r"rules: .*mass.* here, .*mass.* there"):
        record(out, replace(PLAN, rules=("mass",)))


@pytest.mark.parametrize(
    ("variable", "field", "sentence"),
    [
        ("LACKING", "union", "answered a step without union; a step needs position"),
        ("ODD", "kl", "answered a step that is none"),
    ],
)
def test_a_step_that_is_none_is_refused(
    tmp_path, monkeypatch, variable, field, sentence
):
    """In one sentence, and it is not stored."""
    monkeypatch.setenv(f"FAKE_{variable}", field)
    with pytest.raises(RunnerError, match=sentence) as raised:
        record(tmp_path / "budgets.parquet")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.rglob("*.parquet"))

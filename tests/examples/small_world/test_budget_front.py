"""The front of synthetic recordings, against numbers worked out by hand."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evict_profile.errors import ConfigError, DataError
from evict_profile.fit.export import make_table
from evict_profile.records import replace
from evict_profile.table import DraftClock
from evict_profile.traces import TraceInfo
from evict_profile.traces.schema import Metadata, mark
from examples.small_world.budget_front import budget_front
from examples.small_world.engine.budgets import MASS, NONE, SQRT_TOP_K
from examples.small_world.plans import BUDGET_COLUMNS, BUDGET_SCHEMA
from tests.examples.small_world.command import run

ABOUT = TraceInfo(
    "tiny", layers=4, experts=32, top_k=4, depth=3, topk=2, nodes=7, engine="paper"
)
CLOCKS = (DraftClock(1, (0.0, 300.0, 550.0, 800.0), 200.0, 50.0),)
BESIDE_US = 1000.0
"""Drafting to depth 3, and the rest of a step."""
ROUTING_US = 80.0


@pytest.fixture(scope="session")
def table_file(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "1.0.0.json"
    make_table(fitted, "0" * 64).save(path)
    return path


@pytest.fixture(scope="session")
def table(fitted):
    return make_table(fitted, "0" * 64)


def steps(rule, budget, prompt=0, given=False, committed=(4, 4), **changed):
    """The steps of one text; `kl` and `agrees` are of each token."""
    kl, agrees = changed.pop("kl", 0.0), changed.pop("agrees", 1.0)
    for step, count in enumerate(committed):
        row = {
            "rule": rule,
            "budget": budget,
            "workload": "code",
            "prompt": prompt,
            "given": given,
            "position": step,
            "context": 64,
            "verified": ABOUT.nodes + 1,
            "union": min(24.0, budget),
            "committed": count,
            "routing_us": 0.0 if rule == NONE else ROUTING_US,
            "kl": kl * count,
            "agrees": round(agrees * count),
            "excess_loss": 0.0,
        }
        yield {**row, **changed}


def both(*setting, **changed):
    return [*steps(*setting, **changed), *steps(*setting, given=True, **changed)]


def write(folder, rows, about=ABOUT, **changed):
    folder.mkdir()
    rows = pa.Table.from_pylist(list(rows), schema=BUDGET_COLUMNS)
    metadata = Metadata(about, CLOCKS, {"tokens": 8}, 1)
    pq.write_table(mark(rows, metadata, BUDGET_SCHEMA), folder / "00000.parquet")
    return folder


@pytest.fixture
def recording(tmp_path):
    """One prompt in each five is hard; the larger budget loses less, and the rule of
    servers less than mass."""
    rows = []
    for prompt in range(6):
        hard = 1.0 + prompt % 5
        rows += both(NONE, 32, prompt)
        for rule, worse in ((MASS, 4.0), (SQRT_TOP_K, 1.0)):
            for budget in (8, 16):
                kl = hard * worse * 0.01 / budget
                agrees = 1.0 if rule == SQRT_TOP_K else 0.75
                rows += both(rule, budget, prompt, kl=kl, agrees=agrees)
    return write(tmp_path / "typical", rows)


def test_speed_is_all_tokens_over_all_time(table, tmp_path):
    """Verification of what ran, drafting and the rest, and routing."""
    rows = both(NONE, 32) + both(NONE, 32, 1)
    rows += both(MASS, 8) + both(MASS, 8, 1, committed=(4, 2, 2))
    none, mass = budget_front(write(tmp_path / "two", rows), table).points
    verify_us = {
        union: table.cost.latency_us(np.array([8.0]), np.array([union]), 64.0, 1.0)[0]
        for union in (8.0, 24.0)
    }
    plain = 16e6 / (4 * (verify_us[24.0] + BESIDE_US))
    budgeted = 16e6 / (5 * (verify_us[8.0] + BESIDE_US + ROUTING_US))
    assert none.tokens_per_s.value == pytest.approx(plain)
    assert mass.tokens_per_s.value == pytest.approx(budgeted)
    assert mass.speed.value == pytest.approx(budgeted / plain)
    assert (none.committed.value, mass.committed.value) == pytest.approx((4.0, 3.2))
    assert (none.union.value, mass.union.value) == (24.0, 8.0)


def test_tokens_beyond_those_without_a_budget_are_not_credited(table, tmp_path):
    """The text is another; time a step is what a budget can spare."""
    rows = both(NONE, 32, committed=(2, 2)) + both(MASS, 8, committed=(4,))
    none, mass = budget_front(write(tmp_path / "one", rows), table).points
    ratio = none.step_us.value / mass.step_us.value
    assert mass.speed.value == pytest.approx(ratio)
    told = mass.tokens_per_s.value / none.tokens_per_s.value
    assert told == pytest.approx(2.0 * ratio)


def test_quality_is_a_mean_over_tokens_of_given_text(table, tmp_path):
    rows = [*both(NONE, 32), *steps(MASS, 8, kl=9.0, agrees=0.0)]
    rows += steps(MASS, 8, given=True, kl=0.02, agrees=0.5, committed=(6,))
    rows += steps(MASS, 8, given=True, kl=0.0, position=6, committed=(2,))
    _, mass = budget_front(write(tmp_path / "one", rows), table).points
    assert mass.kl.value == pytest.approx(0.015)
    assert mass.agreement.value == pytest.approx(5 / 8)


def test_the_fastest_that_keeps_the_quality_is_advised(recording, table):
    found = budget_front(recording, table)
    names = [point.name for point in found.points]
    assert names == ["none", "mass 8", "mass 16", f"{SQRT_TOP_K} 8", f"{SQRT_TOP_K} 16"]
    assert found.advised.name == f"{SQRT_TOP_K} 8"
    assert "LOSSY" in found.message
    assert budget_front(recording, table, agreement=0.7).advised.budget == 8


def test_the_worse_end_of_the_interval_has_to_keep_the_quality(table, tmp_path):
    rows = []
    for prompt in range(6):
        agrees = 0.9 if prompt == 0 else 1.0
        text = {"committed": (10, 10), "agrees": agrees}
        rows += both(NONE, 32, prompt, **text) + both(MASS, 8, prompt, **text)
    found = budget_front(write(tmp_path / "r", rows), table)
    assert found.points[1].agreement.value > found.agreement
    assert found.advised.rule == NONE


def test_without_a_faster_budget_that_keeps_it_none_is_advised(table, tmp_path):
    slow = {"routing_us": 1e6, "committed": (4, 4)}
    rows = [
        row for p in range(6) for row in both(NONE, 32, p) + both(MASS, 8, p, **slow)
    ]
    found = budget_front(write(tmp_path / "slow", rows), table)
    assert found.advised.rule == NONE
    assert found.message.startswith("Run without a budget")


def test_few_prompts_bound_nothing(table, tmp_path):
    rows = both(NONE, 32) + both(MASS, 8)
    found = json.loads(budget_front(write(tmp_path / "f", rows), table).as_json())
    assert found["points"][1]["speed"]["high"] is None
    assert found["advised"] == NONE
    assert "1 prompts are too few" in found["caveats"][-1]


def test_what_cannot_be_compared_is_refused(recording, table, tmp_path):
    with pytest.raises(DataError, match=r"no workload poems; it holds code"):
        budget_front(recording, table, ["poems"])
    with pytest.raises(ConfigError, match="--agreement 98: give a share"):
        budget_front(recording, table, agreement=98)
    other = write(tmp_path / "o", both(NONE, 32), replace(ABOUT, top_k=2))
    with pytest.raises(DataError, match=r"top-2 \(tiny\), and the table is of .*-4"):
        budget_front(other, table)


def test_the_command_writes_drawing_and_numbers(recording, table_file, tmp_path):
    drawing, numbers = tmp_path / "p.svg", tmp_path / "n.json"
    words = ("budget", table_file, recording, "--out")
    done = run(*words, drawing, "--json", numbers)
    assert done.exit_code == 0, done.stderr
    assert f"Take {SQRT_TOP_K} 8" in done.stdout
    assert json.loads(numbers.read_text())["advised"] == f"{SQRT_TOP_K} 8"
    assert drawing.read_text().startswith("<?xml")
    done = run(*words, table_file.with_suffix(".parquet"))
    assert done.exit_code == 2
    assert "which this command reads" in done.stderr

"""A server's own runs: the overheads that they teach a table, and what they mean."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple
from msgspec.structs import replace as changed

from evict_profile.calibrate.served import Deployment, ServedRun, study
from evict_profile.errors import ConfigError
from evict_profile.fit.export import export_workload
from evict_profile.io import data_root
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import OWN_GROWTH, RECORD, UNSEEN_GROWTH, Amounts
from tests.command import evict

SHIPPED = data_root() / "cost_tables/composed/nvidia-h200/qwen3-30b-a3b"
PATH = SHIPPED / "sglang-0.5.14-bfloat16-tp4-ep1/1.0.0.json"
TABLE = CostTable.load(PATH)
HEAD = "batch,drafts,accept_length,tokens_per_s\n"
CSV = f"{HEAD}8,0,,1367\n8,3,2.43,2010\n8,7,3.02,2090\n"


def setting(batch, drafts, topk=1):
    committed = 1.0 + drafts / 3.0
    return ServedRun(batch, drafts + 1, drafts, topk, committed, 1.0, 1024.0)


def served(table, amounts, *runs, noise=0.0):
    step_us = Deployment(table, runs).step_us(amounts)
    step_us *= np.exp(np.random.default_rng(1).normal(0.0, noise, len(runs)))
    return tuple(
        replace(run, tokens_per_s=1e6 * run.batch * run.committed / us)
        for run, us in zip(runs, step_us, strict=True)
    )


@settings(max_examples=10)
@given(
    layer_us=st.floats(20.0, 150.0),
    token_us=st.floats(10.0, 60.0),
    round_us=st.floats(500.0, 6000.0),
    level_us=st.floats(150.0, 800.0),
)
def test_an_unseen_setting_is_predicted(layer_us, token_us, round_us, level_us):
    """From a plain run and two settings, of servers like the record's and slow ones."""
    planted = Amounts(0.76, layer_us, token_us, round_us, level_us, 132.0)
    runs = served(TABLE, planted, *map(setting, (8, 8, 8), (0, 3, 7)), noise=0.01)
    found = study(TABLE, runs, "planted").found.amounts
    unseen = Deployment(TABLE, (setting(8, 0), setting(8, 5)))
    assert unseen.step_us(found) == pytest.approx(unseen.step_us(planted), rel=0.08)


@pytest.mark.parametrize("batch", [1, 64])
def test_own_runs_show_the_error_near_their_batch(batch):
    """Elsewhere it stays what it was where no run was compared."""
    runs = served(TABLE, RECORD.amounts, *map(setting, (batch, batch), (0, 1)))
    found = study(TABLE, runs, "mine").found
    assert found.growth_at(batch) == OWN_GROWTH
    assert found.growth_at(8) == UNSEEN_GROWTH


def test_what_is_already_known_stays():
    """Runs as the record explains them change neither amounts nor the error."""
    runs = served(TABLE, RECORD.amounts, *map(setting, (8, 8), (0, 3)))
    found = study(TABLE, runs, "mine")
    assert astuple(found.found.amounts) == pytest.approx(astuple(RECORD.amounts))
    assert found.found.growth == RECORD.growth
    assert (found.found.runs, found.found.batches) == (2, (8,))
    assert found.meaning == ("Measured drafting step: 1.00 of the default prediction.")


def test_steps_that_are_too_fast_are_named():
    """A drafting step has another setting; a plain one is faster than its kernels."""
    plain, drafting = served(TABLE, RECORD.amounts, *map(setting, (8, 8), (0, 3)))
    faster = replace(drafting, tokens_per_s=1.5 * drafting.tokens_per_s)
    found = study(TABLE, [plain, faster], "mine")
    assert "check K and the accepted length" in found.meaning
    bare = changed(RECORD.amounts, layer_us=0.0, token_us=0.0)
    runs = served(TABLE, bare, *map(setting, (8, 8), (0, 3)))
    fast = [replace(run, tokens_per_s=1.05 * run.tokens_per_s) for run in runs]
    assert "faster than the sum of its kernels" in study(TABLE, fast, "mine").meaning


def test_a_slow_server_is_told_where_to_look():
    slow = changed(RECORD.amounts, layer_us=120.0, round_us=6000.0, level_us=800.0)
    runs = served(TABLE, slow, *map(setting, (8, 8, 8), (0, 3, 7)))
    found = study(TABLE, runs, "mine")
    explained_us = found.deployment.step_us(found.found.amounts)
    assert explained_us == pytest.approx(found.deployment.served_us, rel=0.06)
    assert "times the default prediction" in found.meaning
    assert "the drafter before K" in found.meaning


def test_repeats_of_a_plain_run_count_alike():
    """A drafting run is held against their mean, whichever comes first."""
    plain, chain = served(TABLE, RECORD.amounts, setting(8, 0), setting(8, 3))
    fast = replace(plain, tokens_per_s=1.1 * plain.tokens_per_s)
    ratios = [
        Deployment(TABLE, runs).errors(RECORD.amounts)[1]
        for runs in ((plain, fast, chain), (fast, plain, chain))
    ]
    assert ratios[0] == pytest.approx(ratios[1])
    assert ratios[0] == pytest.approx(-np.log(1.1) / 2)


@pytest.mark.parametrize("own", ["workload_table", "saved_table"])
def test_a_measured_table_is_explained_as_it_is_served(own, request, tmp_path):
    """Its captured widths, activation and clocks of drafting stay as they were; the
    next version has the cost of the step that the fit explains."""
    path = request.getfixturevalue(own)
    table = CostTable.load(path)
    runs = served(table, RECORD.amounts, *map(setting, (2, 2), (0, 3)))
    found = study(table, [replace(r, context=256.0) for r in runs], "mine")
    made = changed(table, overheads=found.found)
    place = export_workload(made, path, tmp_path / "next")[1]
    after = ServedStep.of(CostTable.load(place)).table
    if table.drafting:
        assert (after.drafting, after.activation) == (table.drafting, table.activation)
    explained = found.deployment.step_us(found.found.amounts)
    cost, clock = after.costs(2, 256).step_cost_us, after.drafting
    assert clock is not None
    for run, step_us in zip(runs, explained, strict=True):
        covered = cost[run.batch * run.width] + clock.at(2).overhead_us(run.levels)
        assert covered == pytest.approx(step_us, rel=1e-3)


def test_captured_widths_are_explained_as_they_are_served():
    """Four tokens a request run as the eight that were captured."""
    captured = changed(TABLE, axes=changed(TABLE.axes, capture_sizes=(1, 8)))
    plain, four, eight = (setting(4, drafts) for drafts in (0, 3, 7))
    step_us = Deployment(captured, (plain, four, eight)).step_us(RECORD.amounts)
    levels_us = 4 * RECORD.amounts.level_us
    assert step_us[2] - step_us[1] == pytest.approx(levels_us)


@pytest.mark.parametrize(
    ("runs", "part"),
    [
        ([setting(8, 3)], "need a plain one"),
        ([setting(8, 0)], "one that drafts"),
        ([setting(8, 0), setting(8, 300)], "does not cover 2408 tokens of 8 requests"),
        ([setting(500, 0), setting(500, 1)], "does not cover 500 tokens"),
    ],
)
def test_runs_that_say_too_little_are_refused(runs, part):
    with pytest.raises(ConfigError, match=part):
        study(TABLE, runs, "mine")


def test_the_command_writes_the_next_version(tmp_path):
    for name in (PATH, PATH.with_suffix(".parquet")):
        (tmp_path / name.name).write_bytes(name.read_bytes())
    (tmp_path / "runs.csv").write_text(CSV)
    words = ("calibrate", "1.0.0.json", "--served", "runs.csv")
    done = evict(*words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    shown = (
        "layer_us",
        "served, ms",
        "of the default prediction.",
        "table: 1.0.1.json",
    )
    assert all(words in done.stdout for words in shown)
    assert "ran once" in done.stderr
    before, after = (CostTable.load(tmp_path / f"1.0.{n}.json") for n in (0, 1))
    assert after.overheads is not None
    assert (after.overheads.source, after.overheads.runs) == ("runs.csv", 3)
    assert after.costs(4, 1024).step_cost_us[8] == before.costs(4, 1024).step_cost_us[8]
    slow, fast = (ServedStep.of(t).us(4, 1, 0, 1024).value for t in (before, after))
    assert fast < slow


def test_runs_that_nothing_explains_are_refused():
    """Of another sharding's server; far too fast; far too slow."""
    other = CostTable.load(SHIPPED / "sglang-0.5.14-bfloat16-tp1-ep1/1.0.0.json")
    sharded = served(TABLE, RECORD.amounts, *map(setting, (16, 16), (0, 3)))
    planned = setting(8, 0), setting(8, 3)
    for table, runs in (
        (other, sharded),
        *((TABLE, [replace(r, tokens_per_s=x) for r in planned]) for x in (1e5, 1e-3)),
    ):
        with pytest.raises(ConfigError, match="check the table's GPU, TP and dtype"):
            study(table, runs, "mine")

"""A server's own steps, learnt from its runs, and what they say."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as changed

from evict_profile.calibrate.served import ServedRun, study
from evict_profile.errors import ConfigError, DataError
from evict_profile.fit.export import export_workload
from evict_profile.io import data_root
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import OWN_GROWTH, RECORD, UNSEEN_GROWTH
from tests.command import evict
from tests.exported import shipped_table

SHIPPED = data_root() / "cost_tables/composed/nvidia-h200/qwen3-30b-a3b"
PATH = SHIPPED / "sglang-0.5.14-bfloat16-tp4-ep1/1.0.0.json"
TABLE = CostTable.load(PATH)
HEAD = "batch,drafts,accept_length,tokens_per_s\n"
CSV = f"{HEAD}8,0,,1367\n8,3,2.43,2010\n8,7,3.02,2090\n"


def setting(batch, drafts, topk=1):
    committed = 1.0 + drafts / 3.0
    return ServedRun(batch, drafts + 1, drafts, topk, committed, 1.0, 1024.0)


def predicted_us(table, run):
    served = ServedStep.of(changed(table, overheads=RECORD), topk=run.topk)
    context = min(run.context, table.fit.domain["context"][1])
    return served.us(run.batch, run.width, run.levels, context).value


def served(table, *runs, plain=1.0, grown=1.0):
    """Runs whose plain step, and growth beyond it, are so many times the predicted."""
    found = []
    for run in runs:
        plain_us = predicted_us(table, replace(run, width=1, levels=0))
        beyond_us = predicted_us(table, run) - plain_us
        us = plain * (plain_us + grown * beyond_us)
        rate = 1e6 * run.batch * run.committed / us
        found.append(replace(run, tokens_per_s=rate))
    return tuple(found)


def after(table, found):
    return ServedStep.of(changed(table, overheads=found.found))


@pytest.mark.parametrize("grown", [0.5, 1.0, 1.9, 4.0])
def test_an_own_run_is_explained(grown):
    runs = served(TABLE, setting(8, 0), setting(8, 3), plain=0.8, grown=grown)
    found = study(TABLE, runs, "mine")
    assert found.explained_us == pytest.approx([run.step_us for run in runs], rel=1e-3)
    assert found.predicted_us[0] == pytest.approx(runs[0].step_us / 0.8, rel=1e-3)


def test_three_quarters_of_the_growth_scale_with_the_prediction():
    runs = served(TABLE, setting(8, 0), setting(8, 3), plain=0.8, grown=1.6)
    found, context = after(TABLE, study(TABLE, runs, "mine")), 1024
    record = ServedStep.of(TABLE)
    three, seven = (record.ratio(8, k + 1, k, context).value - 1.0 for k in (3, 7))
    expected = 1.6 * (0.25 * three + 0.75 * seven)
    ratio = found.ratio(8, 8, 7, context).value
    assert ratio == pytest.approx(1.0 + expected, rel=1e-3)


def test_a_step_that_the_host_bounds_takes_as_long_with_fewer_tokens():
    """A forward that needs longer takes its own time."""
    runs = served(TABLE, setting(1, 0), setting(1, 3), grown=2.5)
    found = study(TABLE, runs, "mine")
    own, record = after(TABLE, found), ServedStep.of(TABLE)
    level_us = RECORD.amounts.level_us
    one, three = (own.us(1, k + 1, k, 1024).value for k in (1, 3))
    assert three - one == pytest.approx(2 * level_us, rel=1e-3)
    wide = (1, 64, 3, 1024)
    assert own.us(*wide).value == pytest.approx(record.us(*wide).value, rel=1e-3)
    assert "the host bounds it at batch 1." in found.meaning


@pytest.mark.parametrize("plain", [0.8, 1.0, 1.5])
def test_a_plain_run_alone_keeps_the_growth_or_the_ratio(plain):
    """A slower plain step adds its host time to each step; a faster one scales all."""
    found = study(TABLE, served(TABLE, setting(8, 0), plain=plain), "mine")
    own, record, way = after(TABLE, found), ServedStep.of(TABLE), (8, 4, 3, 1024)
    scale = plain / max(plain, 1.0)
    plain_us, us = own.us(8, 1, 0, 1024).value, own.us(*way).value
    known_us = record.us(8, 1, 0, 1024).value
    beyond_us = record.us(*way).value - known_us
    assert plain_us == pytest.approx(plain * known_us, rel=1e-3)
    assert us - plain_us == pytest.approx(scale * beyond_us, rel=1e-3)
    assert found.meaning.startswith(f"Measured plain step: {plain:.2f} of the")


def test_an_interval_is_wider_where_the_host_takes_part_of_a_plain_step():
    slow = study(TABLE, served(TABLE, setting(8, 0), plain=2.0), "mine").found
    assert slow.growth_at(8) == pytest.approx(np.hypot(RECORD.growth, np.log(2.0)))
    fast = study(TABLE, served(TABLE, setting(8, 0), plain=0.8), "mine").found
    assert fast.growth_at(8) == RECORD.growth


def test_a_plain_run_alone_does_not_narrow_an_interval():
    """Of SGLang on H200 at batch 8 the error is the record's, elsewhere the larger."""
    runs = served(TABLE, setting(8, 0), setting(64, 0))
    own = after(TABLE, study(TABLE, runs, "mine")).overheads
    assert [own.growth_at(b) for b in (8, 64)] == pytest.approx(
        [RECORD.growth, UNSEEN_GROWTH]
    )
    with_drafts = (*runs, *served(TABLE, setting(64, 3)))
    own = after(TABLE, study(TABLE, with_drafts, "mine")).overheads
    assert [own.growth_at(b) for b in (8, 64)] == [UNSEEN_GROWTH, OWN_GROWTH]


def test_a_plain_run_elsewhere_leaves_the_caveat_that_asks_for_drafts():
    folder = "nvidia-h100-80gb-hbm3/qwen3-30b-a3b/vllm-0.24.0-bfloat16-tp1-ep1"
    table = shipped_table(folder)
    plain = study(table, served(table, setting(8, 0)), "mine")
    assert any("intervals are wide" in each for each in after(table, plain).caveats)
    runs = served(table, setting(8, 0), setting(8, 3))
    drafts = after(table, study(table, runs, "mine"))
    assert not any("intervals are wide" in each for each in drafts.caveats)


def test_far_from_own_batches_nothing_is_predicted():
    runs = served(TABLE, setting(8, 0), setting(8, 3))
    own = after(TABLE, study(TABLE, runs, "mine"))
    assert own.overheads.growth_at(8) == RECORD.growth
    assert own.table.axes.batch == (4, 8, 16)
    assert own.covers(6, 4, 1024)
    with pytest.raises(
        DataError, match=r"batch 32 is outside what was measured, 4\.\.16"
    ):
        own.us(32, 4, 3, 1024)


def test_each_batch_has_its_own_step():
    runs = [
        run
        for batch, grown in ((1, 0.5), (16, 1.5))
        for run in served(TABLE, setting(batch, 0), setting(batch, 3), grown=grown)
    ]
    found = study(TABLE, runs, "mine")
    assert found.explained_us == pytest.approx([run.step_us for run in runs], rel=1e-3)
    assert found.found.growth_at(1) == OWN_GROWTH


def test_between_own_batches_that_are_far_apart_the_error_is_that_of_elsewhere():
    planned = ((1, 0), (1, 3), (64, 0), (64, 3))
    runs = [run for each in planned for run in served(TABLE, setting(*each))]
    own = after(TABLE, study(TABLE, runs, "mine"))
    assert [own.overheads.growth_at(b) for b in (2, 8, 32)] == [
        OWN_GROWTH,
        UNSEEN_GROWTH,
        OWN_GROWTH,
    ]
    near, between = (own.ratio(b, 4, 3, 1024) for b in (2, 8))
    assert between.high / between.value > near.high / near.value


def test_a_second_study_starts_from_the_record():
    """What was learnt before does not count twice."""
    runs = served(TABLE, setting(8, 0), setting(8, 3), grown=1.5)
    once = study(TABLE, runs, "mine").found
    assert study(changed(TABLE, overheads=once), runs, "mine").found == once


def test_steps_that_are_too_fast_or_slow_are_named():
    for grown in (0.2, 1.9):
        runs = served(TABLE, setting(8, 0), setting(8, 7), grown=grown)
        assert "check K, the" in study(TABLE, runs, "mine").meaning
    same = served(TABLE, setting(8, 0), setting(8, 3))
    assert study(TABLE, same, "mine").meaning.endswith(
        "1.00 of the default prediction."
    )


def test_repeats_of_a_plain_run_count_alike():
    plain, chain = served(TABLE, setting(8, 0), setting(8, 3))
    fast = replace(plain, tokens_per_s=1.1 * plain.tokens_per_s)
    runs = (plain, fast, chain)
    one, other = (study(TABLE, each, "mine").found.own for each in (runs, runs[::-1]))
    assert one == other
    assert one[0].plain == pytest.approx((1.0 + 1.0 / 1.1) / 2.0, rel=1e-3)


@pytest.mark.parametrize("own", ["workload_table", "saved_table"])
def test_a_measured_table_is_explained_as_it_is_served(own, request, tmp_path):
    """Its captured widths and activation stay; the next version has the steps that
    were served."""
    path = request.getfixturevalue(own)
    table = CostTable.load(path)
    runs = served(table, setting(2, 0), setting(2, 3), plain=1.2, grown=1.3)
    found = study(table, [replace(r, context=256.0) for r in runs], "mine")
    made = changed(table, overheads=found.found)
    place = export_workload(made, path, tmp_path / "next")[1]
    step = ServedStep.of(CostTable.load(place))
    if table.drafting:
        assert step.table.activation == table.activation
    for run in runs:
        us = step.us(2, run.width, run.levels, 256).value
        assert us == pytest.approx(run.step_us, rel=1e-3)


@pytest.mark.parametrize(
    ("runs", "part"),
    [
        ([setting(8, 3)], "batch 8 needs a plain run; add one"),
        ([setting(8, 0), setting(4, 3)], "batch 4 needs a plain run"),
        ([setting(8, 0), setting(8, 300)], "does not cover 2408 tokens of 8 requests"),
        ([setting(500, 0), setting(500, 1)], "does not cover 500 tokens"),
    ],
)
def test_runs_that_say_too_little_are_refused(runs, part):
    timed = [replace(run, tokens_per_s=1e3) for run in runs]
    with pytest.raises(ConfigError, match=part):
        study(TABLE, timed, "mine")


def test_the_command_writes_the_next_version(tmp_path):
    for name in (PATH, PATH.with_suffix(".parquet")):
        (tmp_path / name.name).write_bytes(name.read_bytes())
    (tmp_path / "runs.csv").write_text(CSV)
    words = ("calibrate", "1.0.0.json", "--served", "runs.csv")
    done = evict(*words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    shown = (
        "served, ms",
        "after, ms",
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


def test_plain_steps_that_no_server_of_the_table_has_are_refused():
    """Of another sharding; far too fast; far too slow."""
    other = CostTable.load(SHIPPED / "sglang-0.5.14-bfloat16-tp1-ep1/1.0.0.json")
    sharded = served(TABLE, setting(16, 0), setting(16, 3))
    planned = setting(8, 0), setting(8, 3)
    for table, runs in (
        (other, sharded),
        *((TABLE, [replace(r, tokens_per_s=x) for r in planned]) for x in (1e5, 1e-3)),
    ):
        with pytest.raises(ConfigError, match="check the table's GPU, TP and dtype"):
            study(table, runs, "mine")

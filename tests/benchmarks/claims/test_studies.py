"""Mismatches, regrets, the prior, and the search that is monotone by assumption."""

import numpy as np
import pytest

from benchmarks.claims import __main__ as command
from benchmarks.claims import mismatch, monotone, prior, regret
from benchmarks.claims.rivals import chains
from benchmarks.claims.worlds import XEON
from evict_profile.stats import Estimate
from evict_profile.table import CostTable


def test_scaled_costs_are_scaled_and_shifted_ones_shifted(trees):
    wrong = mismatch.wrong_tables(trees.table)
    true = trees.table.step_cost_us(1, 128)[1:]
    assert wrong["costs times 2"].step_cost_us(1, 128)[1:] == pytest.approx(
        2.0 * true, rel=0.06
    )
    apart = wrong["costs plus 5 ms"].step_cost_us(1, 128)[1:] - true
    assert apart == pytest.approx(np.full(len(true), 5000.0))


def test_another_machines_table_keeps_the_workload(trees):
    wrong = mismatch.wrong_tables(trees.table)["another machine's table"]
    assert wrong.key.gpu != trees.table.key.gpu
    assert wrong.acceptance == trees.table.acceptance
    assert wrong.drafting == trees.table.drafting


def test_a_figure_has_a_panel_for_each_rule(tmp_path):
    found = [
        mismatch.Loss("costs times 2", rule, batch, Estimate(0.1, 0.0, 0.2))
        for rule in mismatch.RULES
        for batch in mismatch.BATCHES
    ]
    mismatch.draw(found, tmp_path / "m.svg")
    text = (tmp_path / "m.svg").read_text()
    assert text.startswith("<svg") and all(rule in text for rule in mismatch.RULES)


def test_an_oracle_is_faster_than_our_rules(lines):
    replay = regret.long_replay(lines, "code", 1)
    sums = {name: replay.sums(make) for name, make in regret.of_ours(replay).items()}
    assert all(each.lost.value >= 0.0 for each in regret.compared(replay, sums))


def test_constants_of_rivals_are_tuned_on_the_other_half(trees, monkeypatch):
    monkeypatch.setattr(regret, "BATCHES", (1,))
    monkeypatch.setattr(regret, "compared", lambda replay, sums: [])
    monkeypatch.setattr(regret.ScenarioReplay, "sums", lambda self, make: {})
    seen = []
    monkeypatch.setattr(
        regret, "fastest", lambda replay, them: seen.append(replay) or them[0]
    )
    assert not list(regret.of_trees(trees, "mixed"))
    judged, *tuned = ({*replay.arrays.prompts} for replay in seen)
    assert judged == {*trees.of().prompts}
    assert tuned == [{*trees.of(half=0).prompts}] * 2


def test_a_table_predicts_the_speed_of_each_length(lines):
    found = prior.by_table(lines.table, lines.of(half=0), 1, chains(7))
    cost, clock = lines.table.step_cost_us(1, 128, "clamp"), lines.table.drafting.at(1)
    plain_us = cost[1] + clock.plain_fixed_us
    assert len(found) == 8
    assert found[0] == pytest.approx(1.0 / plain_us, rel=0.05)


def test_a_monotone_search_loses_where_a_larger_batch_wants_more():
    speeds = np.array([[1.0, 2.0, 1.0], [1.0, 1.0, 2.0]])
    by_rule, free = (monotone.loss(speeds, 0.0, rule)[0] for rule in (True, False))
    assert by_rule.tolist() == [0.0, 0.5] and free.tolist() == [0.0, 0.0]


def test_the_published_speeds_are_of_seven_batches(lines):
    batches, speeds = monotone.measured(lines)[f"{monotone.NAMED}, served"]
    assert batches == ["1", "2", "4", "8", "16", "32", "64"] and speeds.shape == (7, 6)


def test_the_shipped_table_is_found():
    assert CostTable.load(XEON).version == "1.0.3"


def test_the_command_writes_a_table_by_itself(tmp_path, monkeypatch, lines):
    found = monotone.Lost("a", "2%", "16", "1.0", "0.5")
    monkeypatch.setattr(command.Recordings, "chains", lines)
    monkeypatch.setattr(monotone, "lost_to_the_rule", lambda world: [found])
    asked = ["evict", "--out", str(tmp_path), "--study", "monotone"]
    assert command.main(asked) == 0
    lines_written = (tmp_path / "data/evict-monotone.csv").read_text().splitlines()
    assert lines_written == [
        "speeds,error,worst batch,monotone,free",
        "a,2%,16,1.0,0.5",
    ]


def test_a_recording_that_is_not_there_is_one_sentence(tmp_path, capsys):
    asked = ["evict", "--recordings", str(tmp_path), "--out", str(tmp_path)]
    assert command.main(asked) == 2
    assert capsys.readouterr().err.startswith("error: ")

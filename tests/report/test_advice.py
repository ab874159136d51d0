"""Advice begins with the answer, and with what runs it."""

import json
import shlex

import pytest

from evict_profile.advice.acceptance import of_lengths
from evict_profile.advice.advise import Advisor, BatchAdvice, Gain
from evict_profile.advice.decide import Decision
from evict_profile.advice.plan import DraftPlan, Range, plan
from evict_profile.records import replace
from evict_profile.report.advice import Advice, advise, shell_lines, unbroken
from evict_profile.stats import Estimate
from evict_profile.table import CostTable
from tests.advice.served import planted, served_table
from tests.exported import shipped_table

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1"
RUNS = ((1, 0, 8.0), (1, 3, 10.0), (8, 0, 10.0), (8, 3, 15.0))
GOOD = of_lengths({1: 1.95, 2: 2.85, 3: 3.7}, "good")


def lines_of(advice):
    return str(advice).splitlines()


def rows_of(advice):
    """The printed table, a mapping a row."""
    [(advisor, found)] = advice.decision.parts
    return advice.rows(advisor, found).records


def test_columns_say_over_which_k_they_are_without_plain_decoding():
    found = advise(served_table((1, 1, 8.0), (1, 3, 11.0)), "1:1.7,3:2.9", batch=[1])
    [row, *_] = rows_of(found)
    assert {"even with K = 1 (95 %)", "times K = 1 (95 %)"} <= {*row}
    assert json.loads(found.json())["plan"]["over"] == "K = 1"


def test_a_server_of_no_stated_engine_has_a_command_for_its_flags():
    command = advise(served_table(*RUNS), "3:2.64").command
    assert command == "evict-profile export TABLE --for ENGINE --accept 3:2.64"


def test_nothing_is_to_be_run_without_a_gain():
    assert advise(served_table(*RUNS, engine="vllm"), "3:1.1").command == ""


def test_what_needs_a_file_says_how_to_write_it():
    table = served_table(*RUNS, engine="trtllm")
    start = "evict-profile export TABLE --for trtllm"
    assert advise(table, "3:2.64", batch=[1]).command == (
        f"{start} --accept 3:2.64 --traffic 1:1"
    )


def test_a_schedule_is_written_into_a_file():
    ranges = (Range(1, 4, 5), Range(5, 8, 2))
    advisor = Advisor.of(served_table(*RUNS, engine="sglang"), of_lengths({3: 2.4}, ""))
    made = DraftPlan(
        {1: 0.5, 8: 0.5},
        Gain(3, Estimate(1.2, 1.1, 1.3), "table"),
        schedule=ranges,
        schedule_gain=Estimate(1.9, 1.8, 2.0),
    )
    asked = ("--accept", "3:2.4")
    decision = Decision([advisor], (1, 8), {}, made, False, "3:2.4", "sglang", asked)
    advice = Advice(decision)
    assert advice.command == "evict-profile export TABLE --for sglang --accept 3:2.4"
    assert "K = 3 alone is 1.20 times." in " ".join(advice.notes)


def test_rows_say_where_they_are_known_from_and_what_is_fitted():
    advice = advise(served_table(*RUNS), "3:2.4", batch=1)
    found = {row["draft"]: row for row in rows_of(advice)}
    assert found["K=3"]["known from"] == "measured"
    assert found["K=2 fitted"]["known from"] == "other K"
    assert found["K=3"]["tok/s a request"] == "240"
    assert {*found} == {"none", "K=3", *(f"K={k} fitted" for k in (1, 2, 4, 5, 6))}
    [caveat] = advice.decision.caveats
    assert "at other K are fitted to K = 3" in caveat


def test_a_verdict_of_an_estimate_has_the_error_of_a_fitted_length(composed_path):
    """What is not settled shows two intervals that overlap."""
    found = advise(CostTable.load(composed_path), "3:2.4", batch=4)
    rows = {row["draft"]: row["accepted"] for row in rows_of(found)}
    assert rows["K=3"] == "2.40"
    [way] = [way for way in found.decision.parts[0][1][0].ways if way.levels == 5]
    factor = (5 / 3) ** 0.22
    low, high = way.committed / factor, way.committed * factor
    assert rows["K=5 fitted"] == f"{way.committed:.2f} ({low:.2f}..{high:.2f})"
    assert max(map(len, str(found).splitlines())) <= 100 + len(str(composed_path))


def test_the_best_of_each_batch_is_marked():
    """K = 3 is best at batch 1, K = 1 at batch 8, and plain decoding at batch 16."""
    steps_ms = {1: (10, 12, 14), 8: (10, 12, 24), 16: (10, 24, 40)}
    rows = (
        (b, k, own[i]) for b, own in steps_ms.items() for i, k in enumerate((0, 1, 3))
    )
    found = advise(served_table(*rows), "1:1.8,3:2.6")
    assert [(row["batch"], row["draft"]) for row in rows_of(found)] == [
        (1, "K=1"),
        ("1 *", "K=3"),
        ("8 *", "K=1"),
        (8, "K=3"),
        ("16 *", "none"),
        (16, "K=1"),
        (16, "K=3"),
    ]
    assert "\n* best of its batch; a K that" in str(found)


def test_tokens_per_second_are_of_one_request(saved_table):
    table = CostTable.load(saved_table)
    advice = advise(table, "3:2.64", batch=2, draft_level_ms=0.0)
    step_us = table.costs(2, min(table.axes.context)).step_cost_us[8]
    [row] = [row for row in rows_of(advice) if row["draft"] == "K=3"]
    assert float(row["tok/s a request"].replace(",", "")) == pytest.approx(
        2.64e6 / step_us, rel=0.01
    )


def test_a_printed_command_is_one_for_a_shell():
    command = advise(served_table(*RUNS, engine="vllm"), "3:2.4", batch=1).command
    lines = shell_lines(command)
    assert len(lines) > 1 and max(map(len, lines)) <= 100
    joined = "\n".join(lines).replace("\\\n", " ")
    assert shlex.split(joined) == shlex.split(command)


def test_an_answer_is_one_screen_with_what_it_rests_on(saved_table):
    lines = lines_of(
        advise(CostTable.load(saved_table), "1.95,2.85,3.7", draft_level_ms=0)
    )
    wide = [line for line in lines if len(line) > 100]
    assert len(lines) < 25 and all(str(saved_table) in line for line in wide)
    assert lines[0].startswith("K = ")
    assert any(line.startswith("acceptance: ") for line in lines)
    assert any(line.startswith("drafting: given, 0 ms") for line in lines)


@pytest.mark.parametrize("pad", range(30, 42))
def test_a_length_is_not_broken_over_lines(monkeypatch, pad):
    monkeypatch.setenv("COLUMNS", "40")
    assert any("K = 3" in line for line in unbroken("x" * pad + " K = 3").split("\n"))


def test_json_has_the_answer_and_all_numbers():
    advice = advise(served_table(*RUNS), "3:2.4", batch=1)
    found = json.loads(advice.json())
    assert found["answer"] == advice.answer
    assert found["plan"]["gain"]["value"] == pytest.approx(1.92)
    ways = {way["levels"]: way for way in found["parts"][0]["ways"]}
    assert ways[3]["break_even"]["value"] == pytest.approx(1.25)
    assert (ways[3]["basis"], ways[3]["verdict"]) == ("measured", "pays")


def test_what_is_not_settled_has_the_measurement_that_settles_it():
    said = str(advise(served_table((1, 0, 10.0), (1, 3, 24.0)), "3:2.4"))
    assert said.startswith("Not settled whether drafting pays at batch 1 (0.87 to 1.15")
    assert "  evict-profile probe URL --batch 1 --out runs.jsonl\n" in said
    own = "import TABLE runs.jsonl --model gpt-oss-20b --gpu 'RTX 4090'\n"
    assert f"  evict-profile {own}" in said
    assert "probe URL" not in str(advise(served_table(*RUNS), "3:2.4"))


def test_all_open_batches_of_an_estimate_are_measured():
    said = str(advise(shipped_table(H200), "3:2.4"))
    assert "--batch 1,4 --out runs.jsonl" in said


def test_runs_are_imported_under_the_name_that_the_user_gave():
    decision = advise(shipped_table(H200), "3:2.4").decision
    for given, label in (
        ("Qwen3-Coder-30B-A3B", "Qwen3-Coder-30B-A3B"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
    ):
        said = str(Advice(decision, names=(given, "h200")))
        assert f"--model {label} --gpu 'NVIDIA H200'" in said


def test_what_was_asked_and_is_open_is_measured_and_no_settled_batch():
    rows = (1, 0, 10.0), (1, 3, 24.0), (4, 0, 10.0), (4, 3, 19.0), (8, 0, 10.0)
    table = served_table(*rows, (8, 3, 24.0), engine="llama-cpp")
    said = str(advise(table, "3:2.4", batch=(1, 4, 8)))
    assert "K = 3 at batch 1, 8 on your server" in said.replace("\n", " ")
    assert "  evict-profile probe URL --batch 1,8 --out runs.jsonl\n" in said
    assert "probe URL --batch 1 --out" in str(advise(table, "3:2.4"))


def test_sglangs_flags_are_of_trees_that_beat_every_chain():
    chains = Advisor(planted({1: {1: 1.5, 2: 1.6, 3: 1.7}}), GOOD)
    trees, ways = replace(chains, lengths=replace(GOOD, kind="tree")), chains.at(1).ways

    def flags(chain, tree):
        made = plan(chains, {1: 1.0})
        decision = Decision([chains, trees], (1,), {}, made, False, "t.parquet")
        pairs = (chains, chain), (trees, tree)
        vars(decision)["parts"] = [
            (a, [BatchAdvice(1, (ways[0], *own))]) for a, own in pairs
        ]
        return [*Advice(decision).tree_flags()]

    [line] = flags((), (ways[3],))
    assert "--speculative-num-steps 3 --speculative-num-draft-tokens 4" in line
    assert not flags((), ()) and not flags((ways[3],), (ways[3],))


def test_where_one_length_is_open_a_schedule_that_surely_pays_is_advised():
    """By hand: 1 / (.3 / 1.706 + .1 / 1.318 + .6) is 1.174 times plain decoding."""
    rows = [
        (1, 0, 6.0), (1, 2, 8.4), (1, 4, 10.2),
        (4, 0, 8.0), (4, 2, 13.6), (4, 4, 17.6),
        (16, 0, 14.0), (16, 2, 32.2), (16, 4, 43.4),
    ]  # fmt: skip
    table = served_table(*rows, engine="vllm")
    found = advise(table, "2:2.2,4:2.9", traffic="1:.3,4:.1,16:.6")
    plan = found.decision.plan
    assert plan.lead.verdict == "not settled" and plan.verdict == "pays"
    assert plan.gain.value == pytest.approx(1.174, abs=1e-3)
    assert [plan.drafts_at(batch) for batch in (1, 4, 16)] == [4, 4, 0]


def test_what_is_not_settled_has_no_command_that_serves_it():
    found = advise(served_table((1, 0, 10.0), (1, 3, 22.0), engine="vllm"), "3:2.4")
    assert not found.decision.answer.settled and found.command == ""

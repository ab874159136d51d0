"""Advice begins with the answer, and with what runs it."""

import json
import shlex

from evict_profile.advice.acceptance import of_lengths
from evict_profile.advice.advise import Advisor, DraftPlan, Range
from evict_profile.records import replace
from evict_profile.report.advice import Advice, advise, shell_lines
from evict_profile.table import CostTable
from tests.exported import shipped_table

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1"
TRTLLM = "nvidia-h200/deepseek-v3/trtllm-1.3.0rc20-fp8-block-tp8-ep1"


def test_nothing_is_to_be_run_without_a_gain():
    advice = advise(shipped_table(H200), "0.05", batch=[8])
    assert advice.command == ""


def test_one_length_has_the_flags_of_the_tables_engine():
    command = advise(shipped_table(H200), "1.74,2.27,2.64", batch=[8]).command
    assert "sglang.launch_server" in command
    assert "--speculative-num-steps 3 --speculative-num-draft-tokens 4" in command


def test_what_needs_a_file_says_how_to_write_it():
    table = shipped_table(TRTLLM)
    words = advise(table, "3:2.64", batch=[4], context=512).command.split()
    start = ["evict-profile", "export", str(table.path), "--for", "trtllm"]
    given = ["--accept", "3:2.64", "--traffic", "4:1", "--context", "512"]
    assert words == start + given


def test_a_schedule_is_written_into_a_file():
    advisor = Advisor.of(shipped_table(H200), of_lengths({2: 2.2, 5: 3.0}, ""))
    ranges = (Range(1, 4, 5), Range(5, 8, 2))
    accept = ("--accept", "2:2.2,5:3.0")
    for drafts, gain in ((2, 1.2), (0, 1.0)):
        made = DraftPlan({4: 0.5, 8: 0.5}, drafts, gain, ranges, 1.9)
        advice = Advice([advisor], (4, 8), made, False, accept)
        assert advice.command.startswith("evict-profile export ")
        notes = " ".join(advice.notes())
        assert ("K=2 runs at 1.20 times plain decoding." in notes) == (drafts == 2)
        assert ("No single K is faster." in notes) == (drafts == 0)


def test_tokens_per_second_are_of_one_request(saved_table):
    """Of a data sheet none are stated."""
    table = CostTable.load(saved_table)
    advice = advise(table, "3:2.64", batch=[2], draft_level_ms=0.0)
    step_us = table.costs(2, min(table.axes.context)).step_cost_us[8]
    [row] = [line for line in str(advice).splitlines() if " K=3 " in line]
    assert row.split()[-1] == f"{2.64e6 / step_us:.0f}"
    computed = replace(table, provenance=replace(table.provenance, clock="datasheet"))
    assert "tok/s" not in str(advise(computed, "3:2.64"))


def test_a_printed_command_is_one_for_a_shell():
    command = advise(shipped_table(H200), "3:2.64", batch=[8]).command
    lines = shell_lines(command)
    assert len(lines) > 1 and max(map(len, lines)) <= 100
    joined = "\n".join(lines).replace("\\\n", " ")
    assert shlex.split(joined) == shlex.split(command)


def test_json_has_the_answer_and_all_numbers():
    advice = advise(shipped_table(H200), "3:2.64", batch=[8])
    found = json.loads(advice.json())
    assert found["answer"] == advice.answer
    [batch] = found["parts"][0]["batches"]
    assert batch["ways"][1]["step_us"] > 1e3


def test_lengths_that_are_fitted_are_marked():
    advice = advise(shipped_table(H200), "3:2.64", batch=[8])
    rows = [line.split() for line in str(advice).splitlines() if " K=" in line]
    assert {row[1] for row in rows if row[2] != "fitted"} == {"K=3"}
    assert len(rows) == 16
    caveat, *others = json.loads(advice.json())["caveats"]
    assert "at other K are fitted to K = 3" in caveat
    given = advise(shipped_table(H200), "1.74,2.27,2.64", batch=[8])
    assert json.loads(given.json())["caveats"] == others

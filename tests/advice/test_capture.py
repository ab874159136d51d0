"""CUDA graphs of an advised schedule, against every step that could run in them."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.advise import Gain
from evict_profile.advice.capture import WORTH, check_captured, to_capture
from evict_profile.advice.decide import decide
from evict_profile.advice.plan import Range
from evict_profile.advice.steps import OfTable
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.served.step import ServedStep
from evict_profile.stats import Estimate
from evict_profile.table import CostTable
from evict_profile.table.store import save_next
from tests.advice.served import SERVED, plan_of, served_table
from tests.command import evict
from tests.exported import shipped_table

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1"
WIDTHS = (1, 2, 4, 8, 16, 32, 64)


def captured(table, widths=WIDTHS):
    """The table as a sweep of graphs of these widths would be."""
    return replace(table, axes=replace(table.axes, capture_sizes=widths))


def steps_of(table):
    return OfTable(table, min(table.axes.context), ServedStep.of(table))


STEPS = steps_of(captured(shipped_table(H200)))


def said(*ranges, engine="sglang", steps=STEPS):
    return [*to_capture(ranges, steps, engine)]


def sizes_of(sentence, flag):
    words = sentence.split()
    after = words[words.index(flag) + 1 :]
    return [int(word) for word in after[: after.index("no")]]


def longer(batch, drafts, graph):
    """By the costs of the table before it was told of graphs."""
    table, served = shipped_table(H200), STEPS.served
    us = table.step_cost_us(batch, STEPS.context)
    beside_us = served.beside_us(batch, drafts)
    whole_us = us[batch * (1 + drafts)] + beside_us
    return (us[graph * (1 + drafts)] + beside_us) / whole_us - 1.0


def worst(batches, graphs, drafts):
    """The most by which a step is longer in the next graph; infinite without one."""
    holds = [[g for g in graphs if g >= batch] for batch in batches]
    if not all(holds):
        return math.inf
    pairs = zip(batches, holds, strict=True)
    return max(longer(batch, drafts, min(own)) for batch, own in pairs)


@pytest.mark.parametrize(("reach", "drafts"), [(64, 3), (24, 1), (16, 7), (2, 3)])
def test_every_step_is_nearly_as_short_as_in_its_own_graph(reach, drafts):
    flags, *_ = said(Range(1, reach, drafts))
    sizes = sizes_of(flags, "--cuda-graph-bs-decode")
    assert sizes == sorted(sizes) and sizes[-1] == reach
    assert worst(range(1, reach + 1), sizes, drafts) <= WORTH + 1e-9
    for size in sizes[:-1]:
        fewer = [each for each in sizes if each != size]
        assert worst(range(1, reach + 1), fewer, drafts) > WORTH - 1e-9


def test_what_leaving_a_graph_out_loses_is_that_of_its_longest_step():
    flags, lost = said(Range(1, 32, 3))
    sizes = sizes_of(flags, "--cuda-graph-bs-decode")
    for size, above in pairwise(sizes):
        own = range(max((s for s in sizes if s < size), default=0) + 1, size + 1)
        loss = max(longer(batch, 3, above) for batch in own)
        assert f"{loss:.0%} (batch {size})" in lost
    assert f"(batch {sizes[-1]})" not in lost


def test_vllm_takes_tokens_and_an_engine_without_a_flag_gets_both():
    [requests, *_], [tokens, *_] = (
        said(Range(1, 8, 3), Range(9, 16, 1), engine=engine)
        for engine in ("sglang", "vllm")
    )
    batches = sizes_of(requests, "--cuda-graph-bs-decode")
    own = {batch * (4 if batch <= 8 else 2) for batch in batches}
    assert sizes_of(tokens, "--cudagraph-capture-sizes") == sorted(own)
    both = said(Range(1, 8, 3), Range(9, 16, 1), engine="torch-moe")
    assert both[:2] == [requests, tokens]


def test_a_width_without_a_graph_is_named():
    steps = steps_of(captured(STEPS.table, (1, 4, 8)))
    assert not any("captured no graph" in each for each in said(Range(1, 8, 3)))
    [text] = [s for s in said(Range(1, 8, 4), steps=steps) if "captured no" in s]
    assert "of 5 tokens a request: K = 4" in text


def test_nothing_is_said_of_a_table_without_graphs_or_of_plain_decoding():
    eager = steps_of(shipped_table(H200))
    assert not said(Range(1, 8, 3), steps=eager) + said(Range(1, 8, 3), steps=SERVED)
    assert not said() + said(Range(1, 8, 0))


@given(
    st.sets(st.integers(1, 64), min_size=1, max_size=6),
    st.integers(1, 7),
    st.integers(1, 40),
    st.sampled_from(["sglang", "vllm"]),
)
def test_a_step_beyond_the_largest_graph_is_refused(sizes, drafts, batch, engine):
    """By counting up the requests that a graph of each size would hold."""
    unit, most = (1 if engine == "sglang" else 1 + drafts), max(sizes)
    ends = [next(b for b in range(1, 65) if b * unit >= size) for size in sizes]
    runs = any(end >= batch and end * unit <= most for end in ends)
    try:
        check_captured([*sizes], plan_of(drafts, batch), SERVED, engine)
    except ConfigError as error:
        assert not runs and f"add {batch * unit} to --" in str(error)
    else:
        assert runs


def test_the_gap_of_vllm_54933_is_refused():
    """42 tokens of 6 requests, of which the list of a server ended at 40."""
    ladder, plan = [1, 2, 4, 8, 16, 24, 32, 40], plan_of(6, 6)
    with pytest.raises(ConfigError, match=r"verifies 42 tokens.* add 42 to --cudagr"):
        check_captured(ladder, plan, SERVED, "vllm")
    check_captured([*ladder, 42], plan, SERVED, "vllm")


def test_padding_is_refused_where_it_costs_more_than_a_graph_is_worth():
    plan = plan_of(3, 1, 4)
    check_captured([1, 4], plan, STEPS, "sglang")
    with pytest.raises(ConfigError, match=r"K = 3 at batch 1 verifies 4 tokens.* 5%"):
        check_captured([4], plan, STEPS, "sglang")
    check_captured([4], plan, SERVED, "sglang")
    near = next(b for b in range(32, 64) if longer(b, 3, 64) <= WORTH)
    check_captured([64], plan_of(3, near), STEPS, "sglang")


def test_without_a_draft_nothing_is_checked_and_an_estimate_has_none():
    slower = replace(plan_of(3, 8), lead=Gain(3, Estimate(0.5, 0.4, 0.6), "table"))
    check_captured([1], slower, SERVED, "vllm")
    with pytest.raises(ConfigError, match="an estimate chooses no K"):
        decide(shipped_table(H200), "3:2.4", captured=[1])


def test_the_command_prints_the_graphs_and_refuses_a_gap(saved_table, tmp_path):
    table = captured(CostTable.load(saved_table))
    table.save(path := tmp_path / "graphs.json")
    words = ("advise", path, "--accept", "1.95,2.85,3.7", "--draft-level-ms", 0)
    shown = " ".join(evict(*words, folder=tmp_path).stdout.split())
    assert "--cuda-graph-bs-decode 1 2 no step is" in shown
    done = evict(*words, "--captured", "1,2", folder=tmp_path)
    assert done.exit_code == 2 and "to the sizes" in done.stderr
    own = ("--captured", "4", "--captured", 8)
    assert evict(*words, *own, folder=tmp_path).exit_code == 0


def test_sglang_reads_a_schedule_at_the_size_of_a_graph(tmp_path):
    """K = 3 pays at batches 1 to 4 and loses at 8, to which SGLang pads all from 2 on.
    The command that writes the file has the sizes too."""
    runs = ((1, 0, 8.0), (1, 3, 9.0), (4, 0, 9.0), (4, 3, 12.0), (8, 0, 10.0))
    table = served_table(*runs, (8, 3, 40.0), engine="sglang")
    path = save_next(table, tmp_path)[1]
    words = ("--accept", "3:2.4", "--drafter", "eagle3")
    asked = (*words, "--captured", "1,8")
    free, bound = (
        " ".join(evict("advise", path, *each, folder=tmp_path).stdout.split())
        for each in (words, asked)
    )
    assert "K = 3 at batch 1 to " in free and "K = 3 at batch 1," in bound
    assert "plain decoding at batch 2 to 8" in bound and "--captured 1,8" in bound
    out = tmp_path / "adaptive.json"
    export = ("export", path, *asked, "--for", "sglang", "--out", out)
    assert evict(*export, folder=tmp_path).exit_code == 0
    assert [*json.loads(out.read_text())][:2] == ["1", "2"]

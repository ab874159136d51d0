"""A log gives accepted lengths by drafts, steps of steady lines, load and graphs."""

import numpy as np
import pytest

from evict_profile.errors import ConfigError
from evict_profile.served.readers.logs import BLOCKS
from tests.advice import logs
from tests.served.readers.reading import runs_of, sample


def test_steady_lines_of_sglang_show_steps():
    """8 x 2.5 / 2,000 s and 8 x 2.7 / 2,160 s; the line after a prompt shows none."""
    tail, run = sample("sglang.log")
    assert (run.batch, run.drafts, run.step_us) == (8, 3, pytest.approx(10_000))
    assert run.accept_length == pytest.approx((2.4 + 2.5 + 2.7) / 3)
    assert run.context == pytest.approx((8800 + 9600) / 16)
    assert (run.load.waiting, run.load.kv_usage, run.load.steps) == (3, 0.05, 960)
    assert (run.deployment.model, run.deployment.tp) == ("Qwen/Qwen3-30B-A3B", 2)
    assert (tail.batch, tail.load.steps) == (1, 80)


def test_a_dict_of_settings_is_read_as_a_call_is():
    """SGLang 0.5.23 logs the first, and 0.5.16 the second."""
    [run, *_] = sample("sglang-dict.log")
    assert (run.drafts, run.levels, run.topk, run.width) == (3, 3, 1, 4)
    assert (run.deployment.model, run.deployment.tp) == ("examples/sglang/tiny-moe", 1)
    assert run.deployment.flags == {
        "attention_backend": "intel_amx",
        "moe_runner_backend": "auto",
        "dtype": "float32",
        "ep_size": 1,
        "dp_size": 1,
    }
    assert run.load.graphs.startswith("disable_cuda_graph turns CUDA graphs off")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("'speculative_adaptive': True, ", "changes K while"),
        ("'speculative_num_draft_tokens': 4, ", "states K = 3, and K = 5 was given"),
    ],
)
def test_a_dict_of_settings_is_refused_as_a_call_is(tmp_path, setting, says):
    text = logs.sglang(start=f"server_args={{{setting}'tp_size': 2}}\n")
    with pytest.raises(ConfigError, match=says):
        runs_of(tmp_path, text, drafts=5)


def test_a_log_of_drafts_is_not_taken_as_plain_decoding(tmp_path):
    with pytest.raises(ConfigError, match="logs accepted lengths, and K = 0"):
        runs_of(tmp_path, logs.sglang(start=""), drafts=0)


def test_steady_lines_of_vllm_show_steps():
    """No prompt since the line before: 8 x 2.5 / 1,000 s."""
    tail, run = sample("vllm.log")
    assert (run.batch, run.drafts, run.step_us) == (8, 3, pytest.approx(20_000))
    assert (run.load.waiting, run.load.kv_usage) == (2, pytest.approx(0.942))
    assert run.deployment.version == "0.20.2"
    assert tail.step_us is None


def test_lengths_are_weighted_by_drafts():
    """3,000 and 4,000 steps, and 10 of an idle tail."""
    tail, run = sample("vllm.log")
    first = (3000 * 1.7 + 4000 * 1.8) / 7000
    assert run.accept_lengths[1] == pytest.approx(first)
    assert (run.load.steps, tail.load.steps) == (7000, 10)


def test_a_plain_server_logs_plain_steps(tmp_path):
    text = (
        "server_args=ServerArgs(speculative_algorithm=None)\n"
        + 2
        * "Decode batch, #running-req: 4, #token: 400, token usage: 0.10, cuda graph: "
        "True, gen throughput (token/s): 400.00, #queue-req: 0\n"
    )
    [run] = runs_of(tmp_path, text)
    assert (run.drafts, run.step_us) == (0, pytest.approx(10_000))


def test_many_lines_are_several_runs_of_one_context(tmp_path):
    runs = runs_of(tmp_path, logs.sglang(np.linspace(2.2, 3.0, 100)))
    assert len(runs) == BLOCKS and len({run.context for run in runs}) == 1
    assert runs[0].accept_length < runs[-1].accept_length


def test_a_server_that_started_again_is_another(tmp_path):
    other = logs.SGLANG_START.replace("steps=3", "steps=1").replace(
        "tokens=4", "tokens=2"
    )
    text = logs.sglang((2.6, 2.6)) + logs.sglang((1.8, 1.8), start=other)
    assert [run.accept_lengths for run in runs_of(tmp_path, text)] == [
        {3: pytest.approx(2.6)},
        {1: pytest.approx(1.8)},
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (logs.sglang(graph=False), "2 of 2 logged steps ran without a CUDA graph"),
        (
            logs.sglang(running=16),
            "16 requests at once verify 64 tokens, and CUDA graphs end at 32",
        ),
        (
            logs.vllm(start=logs.VLLM_START + logs.VLLM_PIECEWISE),
            "CUDA graphs fell to PIECEWISE",
        ),
        (logs.vllm(running=17), "17 requests at once verify 68 tokens"),
        (
            logs.sglang(start=logs.SGLANG_START + "disable_cuda_graph=True\n"),
            "disable_cuda_graph turns CUDA graphs off",
        ),
        (
            logs.vllm(start=logs.VLLM_START + "enforce_eager=True\n"),
            "enforce_eager turns CUDA graphs off",
        ),
        (logs.sglang(), ""),
        (logs.vllm(), ""),
    ],
)
def test_graphs_that_did_not_run_are_in_the_load(tmp_path, text, says):
    found = runs_of(tmp_path, text)[0].load.graphs
    assert found.startswith(says) and bool(found) == bool(says)


def test_sizes_are_read_where_capture_ends_as_well(tmp_path):
    """SGLang 0.5.23 lists them there alone."""
    begins = "num_tokens_per_bs=4, bs=[1, 2, 3, 4, 5, 6, 8], avail mem=7.77 GB\n"
    ends = "num_tokens_per_req=4, avail mem=7.77 GB\n[TP0] Capture target verify CUDA "
    ends += "graph end. bs=[1, 2, 4], elapsed=2.10 s, mem usage=0.30 GB\n"
    start = logs.SGLANG_START.replace(begins, ends)
    load = runs_of(tmp_path, logs.sglang(start=start))[0].load
    assert load.graphs.startswith("8 requests at once verify 32 tokens, and CUDA")
    assert "graphs end at 16" in load.graphs


def test_graphs_that_nothing_states_are_unknown(tmp_path):
    assert runs_of(tmp_path, logs.vllm(start=""))[0].load.graphs is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (logs.sglang(start=""), "does not state K; give K as"),
        (
            logs.sglang(start="server_args= speculative_adaptive=True\n"),
            "changes K while",
        ),
        (logs.SGLANG_START, "holds no run, though it looks like a log"),
    ],
    ids=["cut", "adaptive", "idle"],
)
def test_a_log_without_runs_of_one_k_is_refused(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        runs_of(tmp_path, text)


def test_a_log_of_the_plug_in_has_no_one_k(tmp_path):
    start = logs.SGLANG_START + "evict-profile: on, table t.json; widths 1, 4\n"
    with pytest.raises(ConfigError, match=r"changes K while it runs \(evict-profile"):
        runs_of(tmp_path, logs.sglang(start=start))


def test_the_k_of_a_tree_is_its_depth_also_beside_the_file(tmp_path):
    start = logs.SGLANG_START.replace("topk=1", "topk=4").replace(
        "tokens=4", "tokens=8"
    )
    assert runs_of(tmp_path, logs.sglang(start=start), drafts=3)[0].drafts == 3


def test_a_tree_keeps_its_shape(tmp_path):
    start = logs.SGLANG_START.replace("topk=1", "topk=4").replace(
        "tokens=4", "tokens=8"
    )
    run = runs_of(tmp_path, logs.sglang(start=start))[0]
    assert (run.drafts, run.levels, run.topk, run.width) == (3, 3, 4, 8)

"""Results of serving benchmarks, as JSON and as printed."""

import json

import pytest

from evict_profile.errors import ConfigError
from tests.served.readers.reading import SAMPLES, runs_of, sample

VLLM = json.loads((SAMPLES / "vllm-result.json").read_text())
SGLANG = json.loads((SAMPLES / "sglang-results.jsonl").read_text().splitlines()[1])


def changed(folder, base, drafts=None, **changes):
    [run] = runs_of(folder, json.dumps(base | changes), drafts)
    return run


def test_vllms_json():
    """The median time of a token, times what a step commits; no wall time."""
    [run] = sample("vllm-result.json")
    assert (run.batch, run.drafts, run.step_us) == (8, 3, pytest.approx(10_000))
    assert run.accept_lengths == pytest.approx({1: 1.7, 2: 2.2, 3: 2.5})
    assert run.context == pytest.approx(1000.01)
    assert run.load.requests == 100 and not run.load.has_prefill
    assert run.load.drafted == 3.0
    assert run.load.at_once == pytest.approx(100 * (200 + 4.4 * 799) / 60e3)


def test_the_clients_protocol_is_no_engine(tmp_path):
    assert sample("vllm-result.json")[0].deployment.engine == "vllm"
    counters = {key: None for key in VLLM if key.startswith("spec_decode")}
    plain = {k: v for k, v in VLLM.items() if k not in counters}
    assert changed(tmp_path, plain, 0).deployment.engine == ""


def test_sglangs_json_states_its_server():
    plain, chain = sample("sglang-results.jsonl")
    assert (plain.drafts, plain.step_us) == (0, pytest.approx(6000))
    assert (chain.drafts, chain.levels, chain.width) == (3, 3, 4)
    assert chain.step_us == pytest.approx(10_000)
    known = chain.deployment
    assert (known.model, known.engine) == ("Qwen/Qwen3-30B-A3B", "sglang")
    assert (known.version, known.tp) == ("0.5.20", 2)
    assert known.flags["attention_backend"] == "fa3"
    assert chain.text == "sharegpt" and chain.load.at_once == 7.8


def test_a_tree_of_sglang(tmp_path):
    info = SGLANG["server_info"] | {
        "speculative_eagle_topk": 4,
        "speculative_num_draft_tokens": 8,
    }
    run = changed(tmp_path, SGLANG, server_info=info)
    assert (run.drafts, run.levels, run.topk, run.width) == (3, 3, 4, 8)


def test_drafts_per_step_state_k(tmp_path):
    """15.00 drafts a step are of no server with K = 3."""
    counts = {"spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 1500}
    counts |= {"spec_decode_per_position_acceptance_rates": None}
    assert changed(tmp_path, VLLM, **counts).drafts == 15
    with pytest.raises(ConfigError, match="states K = 15, and K = 3 was given"):
        changed(tmp_path, VLLM, 3, **counts)


def test_requests_at_a_rate(tmp_path):
    assert changed(tmp_path, VLLM, max_concurrency=None).batch == 12
    with pytest.raises(ConfigError, match=r"came at a rate \(2.5 a second"):
        changed(
            tmp_path,
            VLLM,
            max_concurrency=None,
            max_concurrent_requests=None,
            request_rate=2.5,
        )


def test_wall_time_is_marked(tmp_path):
    """Where no time of a token is there, throughput has prefill in it."""
    run = changed(tmp_path, SGLANG, median_tpot_ms=-0.0, mean_tpot_ms=None)
    assert run.load.has_prefill
    assert run.step_us == pytest.approx(8e6 * 2.5 / 1333.3)


def test_one_batch_is_plain():
    [run] = sample("one-batch.jsonl")
    assert (run.batch, run.drafts, run.context) == (4, 0, 1536)
    assert run.step_us == pytest.approx(18_900)


def test_one_batch_of_a_server(tmp_path):
    """Its throughput counts tokens after the first."""
    served = {"batch_size": 4, "input_len": 1024, "output_len": 1024}
    served |= {"output_throughput": 400.0, "acc_length": 2.5, "last_ttft": 1.0}
    run = changed(tmp_path, served, 3)
    assert run.step_us == pytest.approx(25_000) and not run.load.has_prefill


def test_an_indented_object_is_read(tmp_path):
    text = f"{json.dumps(VLLM, indent=1)}\n{json.dumps(VLLM)}\n"
    assert [run.batch for run in runs_of(tmp_path, text)] == [8, 8]


def test_what_vllm_prints_is_what_it_saves():
    """Times of a token x accepted length, by position."""
    [run] = sample("vllm-console.txt")
    assert (run.batch, run.drafts) == (1, 3)
    lengths = {1: 1.8342, 2: 2.5633, 3: 3.204}
    assert run.accept_lengths == pytest.approx(lengths)
    assert run.step_us == pytest.approx(11_900 * 3.204)
    assert run.context == 4096 + 512
    assert run.load.drafted == 3.0


def test_what_sglang_prints_is_what_it_saves():
    [run] = sample("sglang-console.txt", 3)
    assert (run.batch, run.load.at_once) == (8, 7.81)
    assert run.step_us == pytest.approx(25_000)
    assert run.deployment.engine == "sglang"


def test_each_printed_block_is_a_run(tmp_path):
    text = (SAMPLES / "vllm-console.txt").read_text()
    assert len(runs_of(tmp_path, text + text)) == 2


@pytest.mark.parametrize(
    ("base", "drafts", "changes", "says"),
    [
        (SGLANG, None, {"server_info": None}, "does not state K; give K as"),
        (SGLANG, 1, {"server_info": None}, "commits 1 to 2 tokens, and 2.5"),
        (SGLANG, 0, {"server_info": None}, "commits 1 to 1 tokens, and 2.5"),
        (SGLANG, None, {"accept_length": None}, "only with the accepted length"),
        ({"max_concurrency": 8}, 0, {}, "states no time of a token"),
        ({"a": 8}, 0, {}, "neither max_concurrency nor batch_size"),
        ({"max_concurrency": "x"}, 0, {}, "looks like the JSON of `vllm bench serve"),
        (VLLM, None, {"temperature": "cold"}, "load.temperature: Expected `float"),
        (VLLM, None, {"median_tpot_ms": 4e-3}, "a step of 0.01 ms cannot be"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, base, drafts, changes, says):
    with pytest.raises(ConfigError, match=says) as caught:
        changed(tmp_path, base, drafts, **changes)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)

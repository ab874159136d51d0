"""Servers count what their steps accepted."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from tests.served.readers.reading import SAMPLES, runs_of, sample


def request(drafted, accepted, most):
    histogram = np.bincount(accepted, minlength=most + 1).tolist()
    return {
        "id": "x",
        "metrics": {
            "speculative_decoding": {
                "acceptance_histogram": histogram,
                "num_draft_tokens": sum(drafted),
                "num_spec_tokens": most,
                "per_step_accepted": accepted,
                "per_step_drafted": drafted,
            }
        },
    }


def summary(response):
    metrics = response["metrics"]["speculative_decoding"]
    kept = {k: v for k, v in metrics.items() if not k.startswith("per_step")}
    return {"metrics": {"speculative_decoding": kept}}


def lengths(folder, *responses):
    runs = runs_of(folder, json.dumps(responses))
    return [[*run.accept_lengths.values()] for run in runs]


def test_a_saved_metrics_of_vllm():
    """Of 1,000 steps 800, 450 and 250 accept each position."""
    [run] = sample("vllm-metrics.txt")
    assert run.accept_lengths == pytest.approx({1: 1.8, 2: 2.25, 3: 2.5})
    assert (run.batch, run.drafts, run.step_us) == (9, 3, None)
    load = run.load
    assert (load.waiting, load.kv_usage, load.at_once) == (56, 0.942, 9)
    assert (load.steps, load.drafted) == (1000, 3.0)
    assert run.deployment.model == "openai/gpt-oss-20b"


def test_a_saved_metrics_of_sglang():
    [run] = sample("sglang-metrics.txt", 3)
    assert (run.batch, run.accept_lengths) == (8, {3: 2.64})
    assert (run.load.waiting, run.load.kv_usage) == (0, 0.42)


def test_sglangs_gauge_of_verified_tokens_states_k(tmp_path):
    text = (SAMPLES / "sglang-metrics.txt").read_text()
    [run] = runs_of(tmp_path, f"{text}sglang:spec_num_draft_tokens 4.0\n")
    assert run.drafts == 3


def test_a_vllm_without_drafts_is_plain(tmp_path):
    [run] = runs_of(tmp_path, "vllm:num_requests_running 3.0\n")
    assert (run.batch, run.drafts, run.accept_lengths) == (3, 0, {})


def test_each_response_is_a_run():
    first, second = sample("vllm-responses.jsonl")
    assert first.accept_lengths == pytest.approx({1: 5 / 3, 2: 7 / 3, 3: 8 / 3})
    assert second.accept_lengths == {1: 2.0, 2: 2.0, 3: 2.0}
    assert (first.load.steps, second.load.steps) == (3, 1)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_a_longer_chain_tells_of_a_shorter(tmp_path_factory, accepted):
    """A chain is accepted as a prefix: at K, min(accepted, K) and one."""
    folder = tmp_path_factory.mktemp("m")
    naive = [np.mean([1 + min(a, k) for a in accepted]) for k in range(1, 5)]
    [found] = lengths(folder, request([4] * len(accepted), accepted, 4))
    assert found == pytest.approx(naive)


def test_shorter_drafts_say_nothing_of_longer(tmp_path):
    assert lengths(tmp_path, request([3, 1], [3, 1], 3)) == [[2.0, 3.0, 4.0]]


def test_a_summary_is_enough_where_all_drafted_alike(tmp_path):
    """The histogram has the lengths; of drafts cut short it does not say whose."""
    assert lengths(tmp_path, summary(request([2, 2], [0, 2], 2))) == [[1.5, 2.0]]
    with pytest.raises(ConfigError, match="detailed"):
        lengths(tmp_path, summary(request([2, 1], [0, 1], 2)))


def test_a_request_that_drafted_nothing_is_left_out(tmp_path):
    idle, one = request([0, 0], [0, 0], 0), request([1, 1], [0, 1], 1)
    assert lengths(tmp_path, idle, one) == [[1.5]]


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"acceptance_histogram": [5], "num_draft_tokens": 0}, "detailed"),
        ({"per_step_accepted": [0], "per_step_drafted": [0]}, "detailed"),
        ({"per_step_accepted": [1, 2]}, "one count a step"),
        ({"per_step_accepted": [1], "per_step_drafted": [2, 2]}, "one count"),
        ({"per_step_accepted": [3], "per_step_drafted": [2]}, "more than"),
        ({"per_step_accepted": [-1], "per_step_drafted": [2]}, ">= 0"),
        ({"per_step_accepted": [1.5], "per_step_drafted": [2]}, "per_step"),
        ({"per_step_accepted": [1], "per_step_drafted": [10**9]}, "<= 1024"),
        ({"acceptance_histogram": []}, "detailed"),
        ({"acceptance_histogram": [1, -1]}, "acceptance_histogram"),
        ({"acceptance_histogram": [0, 10**15]}, "acceptance_histogram"),
    ],
)
def test_odd_metrics_are_one_sentence(tmp_path, metrics, says):
    told = {"acceptance_histogram": [0, 1], "num_draft_tokens": 1, **metrics}
    with pytest.raises(ConfigError, match=says) as caught:
        lengths(tmp_path, {"metrics": {"speculative_decoding": told}})
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)

"""llama.cpp's logs, replies and benchmark."""

import json

import pytest

from evict_profile.errors import ConfigError
from tests.served.readers.reading import runs_of, sample


def test_a_log_is_one_run():
    """Steps are the tokens decoded after the first less those accepted, as the
    server's own count of calls says: 861 and 4."""
    [run] = sample("llama-server.log", 3)
    assert run.step_us == pytest.approx((30387.12 + 161.86) * 1e3 / 865)
    assert run.accept_length == pytest.approx((2047 + 7) / 865)
    assert (run.batch, run.width, run.context) == (1, 4, (233 + 2054 / 2) / 2)


def test_llama_cli_counts_steps():
    [run] = sample("llama-cli.log", 0)
    assert (run.step_us, run.context) == (pytest.approx(32_050), 4 + 16)


def test_each_reply_is_a_run():
    """32 tokens after the first, of which 16 were accepted drafts: 16 steps."""
    first, second = sample("llama-replies.jsonl", 3)
    assert (first.accept_length, first.step_us) == (2.0, pytest.approx(25_000))
    assert (second.accept_length, second.step_us) == (2.0, pytest.approx(20_000))


def test_llama_bench_decodes_plainly():
    [run] = sample("llama-bench.json")
    assert (run.drafts, run.step_us, run.context) == (0, 8000, 512 + 64)
    assert run.deployment.gpu == "NVIDIA GeForce RTX 4090"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(
            {"timings": {"prompt_n": 20, "predicted_n": 159, "predicted_ms": 4e3}}
        ),
        "eval time = 4000.0 ms / 159 tokens\n",
        "eval time = 4000.0 ms / 158 runs\n",
    ],
)
def test_a_time_per_token_is_no_step_without_acceptance(tmp_path, text):
    [plain] = runs_of(tmp_path, text, 0)
    assert plain.step_us == pytest.approx(4e6 / 158)
    with pytest.raises(ConfigError, match="only with the accepted length, and none is"):
        runs_of(tmp_path, text, 2)


@pytest.mark.parametrize(
    ("text", "drafts", "says"),
    [
        ("eval time = 1.0 ms / 1 tokens", 0, "no decoded token"),
        ('{"timings": 3}', 0, "looks like replies of llama-server"),
        ('[{"n_prompt": 512, "n_gen": 0, "avg_ns": 1}]', 0, "times prompts alone"),
        ('[{"n_prompt": 0, "n_gen": 8, "avg_ns": "x"}]', 0, "looks like llama-bench"),
        ('[{"n_prompt": 0, "n_gen": 8, "avg_ns": 1}]', 3, "states K = 0, and K = 3"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, text, drafts, says):
    with pytest.raises(ConfigError, match=says):
        runs_of(tmp_path, text, drafts)

"""llama.cpp's logs, replies and benchmark."""

import json

import pytest

from evict_profile.errors import ConfigError
from tests.served.readers.reading import reading_of, runs_of, sample


def test_a_log_is_one_run():
    """Steps are the tokens decoded after the first less those accepted, as the
    server's own count of calls says: 861 and 4."""
    [run] = sample("llama-server.log", 3)
    assert run.step_us == pytest.approx((30387.12 + 161.86) * 1e3 / 865)
    assert run.accept_length == pytest.approx((2047 + 7) / 865)
    assert (run.batch, run.width, run.context) == (1, 4, (233 + 2054 / 2) / 2)


START = """\
0.00.000.010 I build_info: b9371-6f2c9d1a4 (GNU 13.3.0 for Linux x86_64)
0.00.200.020 I srv    load_model: loading model '/models/Qwen3.6-27B-Q4_K_M.gguf'
"""
DRAFT = "spec common_specu: adding speculative implementation 'draft-simple'\n"


def request(slot, start, seconds, drafts=0, clock=True):
    """Lines of one request by their time: 101 tokens, in 100 / (1 + K) steps."""
    steps = 100 // (drafts + 1)
    counts = f"({100 - steps:5d} accepted / {drafts * steps:5d} generated)"
    said = {
        start: f"slot launch_slot_: id {slot:2d} | task 0 | processing task",
        start + seconds - 2e-3: f"slot print_timing: id {slot:2d} | task 0 | "
        f"      eval time = {1e3 * seconds:10.2f} ms /   101 tokens",
        start + seconds - 1e-3: f"slot print_timing: id {slot:2d} | task 0 | "
        f"draft acceptance = 0.5 {counts}",
        start + seconds: f"slot      release: id {slot:2d} | task 0 | stop processing",
    }
    if not drafts:
        del said[start + seconds - 1e-3]
    return [
        (at, f"0.{int(at):02d}.{round(at % 1 * 1e3):03d}.000 I " * clock + line)
        for at, line in said.items()
    ]


def log(*requests):
    lines = sorted(line for each in requests for line in each)
    return START + "".join(f"{line}\n" for _, line in lines)


def test_slots_that_decode_together_are_a_batch(tmp_path):
    found = reading_of(tmp_path, log(request(0, 1, 2.0), request(3, 1, 2.1)))
    [run], [note] = found.runs, found.notes
    assert "batch 2 is by its slots: 1.95 decoded at once in the mean" in note
    assert (run.batch, run.drafts, run.step_us) == (2, 0, pytest.approx(20_500))
    assert run.load.at_once == pytest.approx((2 * 2.0 + 0.1) / 2.1, rel=1e-3)


def test_slots_that_decode_one_after_another_are_a_batch_of_1(tmp_path):
    both = log(request(0, 1, 2.0, clock=False), request(3, 4, 2.0, clock=False))
    [run] = runs_of(tmp_path, both)
    assert (run.batch, run.load.at_once) == (1, None)


@pytest.mark.parametrize(
    "requests",
    [
        (request(0, 1, 2.0, clock=False), request(3, 1, 2.1, clock=False)),
        (request(0, 1, 2.0), request(3, 1, 4.0)),
        (request(0, 1, 2.0)[1:-1], request(3, 1, 2.0)[1:-1]),
    ],
    ids=["no times", "half of the time", "no launches"],
)
def test_a_log_of_several_slots_without_a_batch_is_refused(tmp_path, requests):
    with pytest.raises(ConfigError, match=r"2 slots decoded, .* or give batch and"):
        runs_of(tmp_path, log(*requests))


def test_a_log_whose_slots_change_is_refused_with_their_shares(tmp_path):
    text = log(request(0, 1, 4.0), request(3, 3, 4.0))
    with pytest.raises(ConfigError, match=r"1 for 67%, 2 for 33%") as caught:
        runs_of(tmp_path, text)
    assert "timestamps" not in str(caught.value)


def test_a_log_that_names_no_slot_is_of_one_request_with_a_note(tmp_path):
    found = reading_of(tmp_path, "eval time = 400.0 ms / 41 tokens\n" * 2, 0)
    assert found.runs[0].batch == 1 and "1 is assumed" in found.notes[0]


def test_a_log_states_its_model_and_build(tmp_path):
    [run] = runs_of(tmp_path, log(request(0, 1, 2.0)))
    known = run.deployment
    assert (known.model, known.version) == ("Qwen3.6-27B-Q4_K_M", "b9371-6f2c9d1a4")
    old = "build: 5142 (80f19b41) with cc\neval time = 400.0 ms / 41 tokens\n"
    [run] = runs_of(tmp_path, old, 0)
    assert run.deployment.version == "b5142-80f19b41"


@pytest.mark.parametrize(
    "says",
    [
        "llama-server -m M -md D --spec-draft-n-max 4 -np 1\n",
        "llama-server -m M -md D --draft-max 4\n",
        DRAFT + "spec common_specu: - n_max=4, n_min=0, p_min=0.750000\n",
        DRAFT,
    ],
    ids=["flag", "old flag", "first lines", "drafts of each step"],
)
def test_a_log_states_k(tmp_path, says):
    text = says + log(request(0, 1, 2.0, drafts=4))
    assert runs_of(tmp_path, text)[0].drafts == 4
    with pytest.raises(ConfigError, match="states K = 4, and K = 5 was given"):
        runs_of(tmp_path, text, 5)


def test_a_log_that_drafts_fewer_at_some_steps_states_no_k(tmp_path):
    two = log(request(0, 1, 2.0, drafts=4), request(0, 4, 2.0, drafts=1))
    with pytest.raises(ConfigError, match="does not state K"):
        runs_of(tmp_path, DRAFT + two)
    assert runs_of(tmp_path, DRAFT + two, 4)[0].load.drafted == pytest.approx(130 / 70)


def test_two_starts_of_a_server_are_refused(tmp_path):
    one = log(request(0, 1, 2.0))
    with pytest.raises(ConfigError, match="2 starts of the server; give each its own"):
        runs_of(tmp_path, one + one)
    assert runs_of(tmp_path, START + one)


def test_llama_cli_counts_steps():
    [run] = sample("llama-cli.log", 0)
    assert (run.step_us, run.context) == (pytest.approx(32_050), 4 + 16)


def test_each_reply_is_a_run():
    """32 tokens after the first, of which 16 were accepted drafts: 16 steps."""
    first, second = sample("llama-replies.jsonl", 3)
    assert (first.accept_length, first.step_us) == (2.0, pytest.approx(25_000))
    assert (second.accept_length, second.step_us) == (2.0, pytest.approx(20_000))


def test_llama_batched_bench_decodes_plainly_at_each_batch():
    """1.792 and 3.072 s of 128 steps."""
    runs = sample("llama-batched-bench.jsonl")
    assert [(run.batch, run.drafts) for run in runs] == [(1, 0), (4, 0)]
    assert [run.step_us for run in runs] == pytest.approx([14_000, 24_000])


def test_the_last_drafts_of_a_reply_may_be_cut(tmp_path):
    """K = 8 at 29 of 30 steps, and 3 at the last."""
    timings = {"predicted_ms": 900.0, "predicted_n": 61, "prompt_n": 9}
    timings |= {"draft_n": 8 * 29 + 3, "draft_n_accepted": 30}
    [run] = runs_of(tmp_path, json.dumps({"timings": timings}))
    assert run.drafts == 8


def test_prompts_of_others_in_the_steps_of_slots_are_a_share(tmp_path):
    """Two slots: each waits for the other's prompt of 100 ms in a reply of 1,000 ms."""
    lines = [
        f"0.0{t}.000.000 I slot {what}: id {slot} | task 1 | x"
        for t, what, slot in [
            (0, "launch_slot_", 0),
            (0, "launch_slot_", 1),
            (9, "release", 0),
            (9, "release", 1),
        ]
    ]
    timed = (
        "prompt eval time =  100.0 ms /  9 tokens\n"
        "       eval time = 1000.0 ms / 51 tokens\n"
    )
    text = "load_model: loading model 'm.gguf'\n" + "\n".join(lines) + "\n" + 2 * timed
    [run] = runs_of(tmp_path, text)
    assert run.batch == 2 and run.load.stalls == pytest.approx(0.1)


def test_llama_bench_decodes_plainly():
    [run] = sample("llama-bench.json")
    assert (run.drafts, run.step_us, run.context) == (0, 8000, 512 + 64)
    assert run.deployment.gpu == "NVIDIA GeForce RTX 4090"
    assert run.deployment.version == "b9235-d14ce3dab"


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

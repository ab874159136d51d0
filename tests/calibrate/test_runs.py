"""Runs of a server, read from what its own tools write."""

import json

import pytest

from evict_profile.calibrate.probed import check_servers
from evict_profile.calibrate.runs import read_settings
from evict_profile.calibrate.served import ServedRun
from evict_profile.errors import ConfigError

CSV = """# H200, TP 4
batch, drafts, accept_length, tokens_per_s, step_ms, levels, topk, verified, context
8, 0, , 1367, , , , ,
8, 3, 2.5, , 10.0, , , , 2000
8, 5, 3.0, , 12.0, 5, 3, 6,
"""

PLAIN = {"max_concurrency": 8, "completed": 100, "output_throughput": 1333.3}
PLAIN |= {"total_input_tokens": 60_000, "total_output_tokens": 80_000}
PLAIN |= {"mean_tpot_ms": 4.4, "median_tpot_ms": 4.0}
SGLANG = PLAIN | {"dataset_name": "sharegpt", "request_rate": float("inf")}
SGLANG |= {"concurrency": 7.8, "median_itl_ms": 9.9, "accept_length": 2.5}
VLLM = PLAIN | {"spec_decode_acceptance_rate": 50.0}
VLLM |= {"spec_decode_acceptance_length": 2.5}

LOG = """slot print_timing: id  3 | task 0 |
prompt eval time =     648.99 ms /   133 tokens (    4.88 ms per token,   204.94 tokens per second)
       eval time =   30387.12 ms /  2048 tokens (   14.84 ms per token,    67.40 tokens per second)
      total time =   31036.11 ms /  2181 tokens
draft acceptance rate = 0.98260 ( 1186 accepted /  1207 generated)
slot print_timing: id  3 | task 9 |
prompt eval time =     100.00 ms /   100 tokens (    1.00 ms per token,  1000.00 tokens per second)
       eval time =     161.86 ms /     8 tokens (   20.23 ms per token,    49.43 tokens per second)
draft acceptance = 0.37500 (    3 accepted /     8 generated), mean len =  1.75
"""  # noqa: E501


def read(folder, text, drafts):
    path = folder / "runs"
    path.write_text(text)
    found = read_settings({path: drafts})
    return [run for setting in found for run in setting.runs]


def loads(folder, text, drafts):
    (folder / "runs").write_text(text)
    found = read_settings({folder / "runs": drafts})
    return [load for setting in found for load in setting.loads]


def test_a_csv_says_its_settings(tmp_path):
    plain, chain, tree = read(tmp_path, CSV, None)
    assert plain == ServedRun(8, 1, 0, 1, 1.0, 1367.0, 1024.0)
    assert (chain.width, chain.levels, chain.topk, chain.context) == (4, 3, 1, 2000)
    assert chain.step_us == pytest.approx(10_000)
    assert (tree.width, tree.levels, tree.topk) == (6, 5, 3)


@pytest.mark.parametrize("result", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_a_result_gives_decoding_time(tmp_path, result):
    """The median time of a token, times what a step commits; no wall time."""
    [run] = read(tmp_path, json.dumps(result), 3)
    assert (run.batch, run.width, run.levels, run.committed) == (8, 4, 3, 2.5)
    assert (run.step_us, run.context) == pytest.approx((10_000, 1000))


def test_each_line_is_a_run(tmp_path):
    """SGLang appends a line a run; an indented object is read as well."""
    plain = {**SGLANG, "accept_length": None}
    text = f"{json.dumps(plain)}\n{json.dumps(plain, indent=1)}\n"
    runs = read(tmp_path, text, 0)
    assert [run.step_us for run in runs] == pytest.approx([4000, 4000])


def test_a_log_is_one_run(tmp_path):
    """Steps are the tokens decoded after the first less those accepted, as the
    server's own count of calls says: 861 and 4."""
    [run] = read(tmp_path, LOG, 3)
    assert run.step_us == pytest.approx((30387.12 + 161.86) * 1e3 / 865)
    assert run.committed == pytest.approx((2047 + 7) / 865)
    assert (run.batch, run.width) == (1, 4)


ONE_BATCH = {"run_name": "a", "batch_size": 4, "input_len": 1024, "output_len": 1024}
REPLY = {"prompt_n": 100, "predicted_n": 33, "predicted_ms": 400.0}


def test_a_batch_without_a_server_is_a_run(tmp_path):
    """SGLang's bench_one_batch times decoding, and its server's form counts tokens
    after the first."""
    one = ONE_BATCH | {"median_decode_latency": 0.0189}
    [run] = read(tmp_path, json.dumps(one), 0)
    assert (run.batch, run.context) == (4, 1536)
    assert run.step_us == pytest.approx(18_900)
    served = {"output_throughput": 400.0, "acc_length": 2.5, "last_ttft": 1.0}
    [run] = read(tmp_path, json.dumps(ONE_BATCH | served), 3)
    assert run.step_us == pytest.approx(25_000)


def test_a_reply_of_llama_server_is_a_run(tmp_path):
    """32 tokens after the first, of which 16 were accepted drafts: 16 steps."""
    reply = {"content": "a", "timings": REPLY | {"draft_n": 24, "draft_n_accepted": 16}}
    [run] = read(tmp_path, json.dumps(reply), 3)
    assert (run.batch, run.committed) == (1, 2.0)
    assert run.step_us == pytest.approx(25_000)


def test_a_csv_may_have_the_names_that_people_write(tmp_path):
    text = "concurrency, K, tok/s, accepted\n2,0,100,\n2,3,150,3.0\n"
    plain, chain = read(tmp_path, text, None)
    assert plain.step_us == pytest.approx(20_000)
    assert (chain.step_us, chain.committed) == (pytest.approx(40_000), 3.0)


def test_repeats_that_differ_make_no_table(tmp_path):
    (tmp_path / "runs").write_text("batch,K,step_ms\n8,0,10\n8,0,20\n")
    found = read_settings({tmp_path / "runs": None})
    with pytest.raises(ConfigError, match="as of several dep"):
        check_servers(found, "tiny")


def test_repeats_in_several_files_are_one_setting(tmp_path):
    """A step of one run is known to 10 %, and of four to 5 %."""
    for name, text in (("a", CSV), ("b", CSV)):
        (tmp_path / name).write_text(text)
    found = read_settings(dict.fromkeys([tmp_path / "a", tmp_path / "b"]))
    assert [len(setting.runs) for setting in found] == [2, 2, 2]
    step = found[0].step_us
    assert step.high / step.value == pytest.approx(1.07, abs=0.005)


def test_wall_time_is_marked(tmp_path):
    """Where no time of a token is there, throughput has prefill in it."""
    told = {**SGLANG, "median_tpot_ms": -0.0}
    del told["mean_tpot_ms"]
    [run] = read(tmp_path, json.dumps(told), 3)
    assert run.tokens_per_s == 1333.3
    assert loads(tmp_path, json.dumps(told), 3)[0].has_prefill


@pytest.mark.parametrize(
    ("text", "drafts", "part"),
    [
        (CSV, 3, "in the column drafts of a CSV"),
        (json.dumps(SGLANG), None, "runs=K for JSON and logs"),
        (LOG, None, "runs=K for JSON and logs"),
        (json.dumps(SGLANG), 1, "run 1: accept_length must be 1 to 2"),
        (json.dumps(SGLANG), 0, "run 1: accept_length must be 1 to 1"),
        (json.dumps({**VLLM, "max_concurrency": None}), 3, "max_concurrency"),
        (
            json.dumps(VLLM | {"spec_decode_acceptance_length": None}),
            3,
            "accept_length",
        ),
        (json.dumps({"max_concurrency": 8}), 0, "either tokens_per_s or step_ms"),
        ("{]", 3, "no result of a serving benchmark"),
        ("{}\n[1]", 3, "no result of a serving benchmark"),
        ("", None, "holds no run"),
        (" ", None, "holds no run"),
        ("batch,K,tok/s\n", None, "holds no run; add a plain one"),
        ("batch,K,tok/s\n8,0,1e300\n", None, "a step of 8e-297 ms cannot be"),
        ("batch,K,step_ms\n8,0,16e4\n", None, "a step of 1.6e+05 ms cannot be"),
        ("a,b\n1,2\n", None, "key 'batch' is missing"),
        ("batch,K,tok/s\n8,3,10\n", None, "needs accept_length; give it, or step_ms"),
        ("batch,K,step_ms,accepted\n8,3,10,5\n", None, "must be 1 to 4"),
        ("batch,drafts,step_ms\n8,0,fast\n", None, "step_ms"),
        ("batch,drafts,step_ms\n8,0,-1\n", None, "step_ms"),
        ("batch,drafts,step_ms,note\n8,0,5,new\n", None, "unknown key 'note'"),
        ("batch,drafts,verified,step_ms\n8,0,4,5\n", None, "verified must be 1"),
        ("eval time = 1.0 ms / 1 tokens", 0, "no decoded token"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, text, drafts, part):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, text, drafts)
    sentence = str(error.value)
    assert part in sentence and str(tmp_path) in sentence and "\n" not in sentence


def test_a_file_of_no_text_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no text"):
        read_settings({tmp_path / "binary": None})

"""Each planted fault of runs is found, and clean runs yield nothing."""

import json

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.check import ALL, UNUSUAL, findings, unknown
from evict_profile.calibrate.runs import read_settings
from evict_profile.io import data_root
from evict_profile.served.probe.record import Probed, Wave, append
from evict_profile.served.probe.server import ServerInfo
from tests.advice import logs
from tests.command import evict

# 100 requests of 600 and 801 tokens, 8 at once: TPOT of a step of 10 ms, and a TTFT of
# a twentieth of a request's time.
VLLM = {
    "date": "20261120-101112",
    "backend": "vllm",
    "model_id": "Qwen/Qwen3-30B-A3B",
    "num_prompts": 100,
    "request_rate": "inf",
    "max_concurrency": 8,
    "duration": 44.2,
    "completed": 100,
    "failed": 0,
    "total_input_tokens": 60_017,
    "total_output_tokens": 80_123,
    "output_throughput": 1813.0,
    "mean_ttft_ms": 168.4,
    "mean_tpot_ms": 4.01,
    "median_tpot_ms": 4.0,
}
DRAFTS = {
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_num_drafts": 32_000,
    "spec_decode_draft_tokens": 96_000,
}
SGLANG = {
    **{k: v for k, v in VLLM.items() if k not in ("failed", "date", "num_prompts")},
    **{"dataset_name": "sharegpt", "backend": "sglang", "concurrency": 7.7},
}


def judged(folder, runs, log=""):
    """The findings in repeated runs: (K, facts) of each file."""
    files = {}
    for number, (drafts, facts) in enumerate(runs):
        path = folder / f"{number}.json"
        path.write_text(json.dumps(facts))
        files[path] = drafts
    return [*findings(read_settings(files), [])]


def plain_and_drafts(plain, drafting, **changes):
    """Three runs of each, of which the drafting ones have changes."""
    return [(0, {**plain, "median_tpot_ms": 6.0})] * 3 + [(3, drafting | changes)] * 3


@pytest.mark.parametrize(
    ("plain", "drafting"),
    [(VLLM, VLLM | DRAFTS), (SGLANG, SGLANG | {"accept_length": 2.5})],
    ids=["vllm", "sglang"],
)
def test_clean_runs_yield_nothing(tmp_path, plain, drafting):
    assert not judged(tmp_path, plain_and_drafts(plain, drafting))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset_name": "random"}, "prompts are random, so 2.50 accepted tokens"),
        (
            {"total_input_tokens": 60_000, "total_output_tokens": 80_000},
            "one input and one output length",
        ),
        ({"accept_length": 1.36}, "1.36 tokens are accepted, and 97 %"),
        ({"accept_length": 3.99}, "nearly all that are drafted"),
        ({"spec_decode_draft_tokens": 60_000}, "not the same at each step: 1.88"),
        ({"max_concurrency": 16, "duration": 22.0}, "no plain run has this batch"),
        ({"model_id": "other"}, "model: Qwen/Qwen3-30B-A3B plain, other drafting"),
        ({"dataset_name": "mtbench"}, "prompts: sharegpt plain, mtbench drafting"),
        ({"total_input_tokens": 260_017}, "contexts are 1001 tokens plain and 3001"),
        ({"failed": 7}, "7 requests failed"),
        ({"duration": 60.0}, "5.6 requests ran at once in the mean; send at least 32"),
        ({"duration": None, "completed": 20}, "20 requests leave the last batches"),
        ({"mean_ttft_ms": 3000.0, "duration": 80.0}, "48% of a request's time"),
        ({"median_tpot_ms": 5.9}, "1.02 times plain decoding is within 8%"),
        ({"median_tpot_ms": None, "mean_tpot_ms": None}, "no time of a token"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, changes, says):
    drafting = SGLANG | DRAFTS | {"accept_length": 2.5}
    found = judged(tmp_path, plain_and_drafts(SGLANG, drafting, **changes))
    assert any(says in line for line in found), found
    assert len(found) <= 2


def test_repeats_that_differ_and_single_runs_are_found(tmp_path):
    runs = plain_and_drafts(SGLANG, SGLANG | {"accept_length": 2.5})
    slow = [*runs[:-1], (3, runs[-1][1] | {"median_tpot_ms": 6.0})]
    assert "repeated steps take 10.00 to 15.00 ms" in judged(tmp_path, slow)[0]
    [once] = judged(tmp_path, runs[2:4])
    assert once.startswith("2 of 2 settings ran once, so a speed-up is known to 14%")


def test_the_worst_comes_first_and_others_of_its_kind_are_counted(tmp_path):
    random = SGLANG | {"dataset_name": "random", "accept_length": 2.5, "failed": 3}
    runs = plain_and_drafts(SGLANG | {"dataset_name": "random"}, random)
    runs += [(k, facts | {"accept_length": 2.9}) for k, facts in runs[3:]]
    text, failed = judged(tmp_path, [*runs[:6], *[(5, r[1]) for r in runs[6:]]])
    assert text.startswith("K = ") and " and 1 more: prompts are random" in text
    assert "3 requests failed" in failed


@given(st.floats(UNUSUAL + 0.01, 0.9), st.integers(1, 16))
def test_usual_lengths_are_believed(tmp_path_factory, rate, drafts):
    folder = tmp_path_factory.mktemp("runs")
    length = float(of_rate(rate).committed[drafts])
    facts = SGLANG | {"accept_length": length, "median_tpot_ms": 2.0}
    runs = [(0, SGLANG)] * 3 + [(drafts, facts)] * 3
    assert not judged(folder, runs)


def test_probed_servers_that_change_k_are_found(tmp_path):
    """Their texts, requests and versions are known."""
    path = tmp_path / "runs.jsonl"
    for k, adaptive in ((0, False), (3, True)):
        server = ServerInfo("http://a", "vllm", "1", "a", k, k, 1, {}, adaptive)
        append(path, Probed(server, "chat"))
        for number in range(3):
            length, rate = (2.5, 500.0) if k else (None, 300.0)
            append(path, Wave(number, 1, rate, length, 512.0, 0, 0.0, 1.0))
    found = read_settings({path: None})
    [line] = findings(found, [])
    assert "K is not the same at each step: K varies, at most 3" in line
    assert [*unknown(found, [])] == ["CUDA graphs (a server's log states them)"]


@pytest.fixture(scope="module")
def public():
    """Published settings that draft; a group has one source, text and drafter."""
    data = data_root() / "benchmarks/served/data"
    names = {"batch_size": "concurrency", "steps": "K", "draft_tokens_K": "K"}
    names |= {"num_draft_tokens": "verified_n", "topk": "tree_topk"}
    frames = [
        pd.read_csv(data / f"{name}.csv", comment="#").rename(columns=names)
        for name in ("specbundle", "served-pairs", "new-2026")
    ]
    rows = pd.concat(frames).dropna(subset=["K", "accept_length"])
    about = ["model", "dataset", "draft", "source", "gpu", "tp", "target", "method"]
    rows["group"] = rows[about].fillna("").astype(str).sum(axis=1)
    return rows.fillna({"tree_topk": 1}).astype({"K": int, "tree_topk": int})


def test_the_limit_of_acceptance_is_that_of_published_chains(public):
    chains = public[public.tree_topk == 1]
    doubted = chains.accept_length < of_rate(UNUSUAL).committed[chains.K]
    assert len(chains) == 324
    assert 1.0 - doubted.mean() == pytest.approx(0.97, abs=0.005)
    assert ((chains.accept_length - 1.0) / chains.K > ALL).sum() == 1


def test_public_runs_are_rarely_doubted(public, tmp_path):
    """The counts of docs/decide/your-server.md."""
    path, said = tmp_path / "runs.csv", []
    served = public.dropna(subset=["spec_tok_s"])
    for _, rows in served.groupby("group"):
        runs = rows[["concurrency", "K", "tree_topk", "accept_length", "spec_tok_s"]]
        runs = runs.set_axis(["batch", "K", "topk", "accepted", "tok/s"], axis=1)
        runs["verified"] = rows.verified_n.fillna(rows.K + 1).astype(int)
        plain = rows.dropna(subset=["plain_tok_s"]).drop_duplicates("concurrency")
        plain = plain[["concurrency", "plain_tok_s"]].set_axis(
            ["batch", "tok/s"], axis=1
        )
        plain = plain.assign(K=0, topk=1, verified=1)
        pd.concat([plain, runs]).to_csv(path, index=False)
        said.append(" ".join(findings(read_settings({path: None}), [])))
    assert (len(said), len(served)) == (111, 504)
    assert sum("are accepted" in each for each in said) == 2
    assert sum("the noise of such runs" in each for each in said) == 18


CSV = "batch,K,tok/s,accepted,requests\n" + "1,0,100,,9\n" * 3 + "1,3,190,2.5,9\n" * 3


def test_the_command_says_what_it_found_and_what_is_unknown(tmp_path):
    (tmp_path / "runs.csv").write_text(CSV)
    done = evict("advise", "--check", "runs.csv", folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert "Nothing was found that speaks against these runs." in done.stdout
    assert "Not known from these files: the text, the temperature" in done.stdout
    (tmp_path / "server.log").write_text(logs.sglang(graph=False))
    words = ("--check", "runs.csv", "--check", "server.log")
    done = evict("advise", *words, folder=tmp_path)
    assert done.exit_code == 1
    assert done.stdout.startswith("server.log: 2 of 2 logged steps ran without")
    assert "CUDA graphs (a" not in done.stdout

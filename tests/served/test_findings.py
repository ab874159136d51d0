"""Each planted fault of runs is found, and clean runs yield nothing."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.acceptance import of_rate
from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.served.findings import ALL, UNUSUAL, findings, is_fault, unknown
from evict_profile.served.run import Deployment, Load
from tests.served.runs import SERVER, clean, rows, run


def said(runs, left_out=None):
    return [each.sentence for each in findings(runs, left_out or {})]


def kinds(runs, left_out=None):
    return [each.kind for each in findings(runs, left_out or {})]


def with_load(runs, **facts):
    """The drafting runs with other facts of their requests."""
    return [
        replace(each, load=replace(each.load, **facts)) if each.drafts else each
        for each in runs
    ]


def test_clean_runs_yield_nothing_and_nothing_is_unknown():
    assert not said(clean())
    assert not unknown(clean())


@pytest.mark.parametrize(
    ("facts", "kind", "says"),
    [
        ({"waiting": 56}, "queue", "56 requests waited while 1 ran, so throughput"),
        ({"kv_usage": 0.96}, "kv", "96% of the KV cache was in use"),
        ({"at_once": 2.0}, "batches", "1.0 requests ran at once plain and 2.0"),
        ({"graphs": "CUDA graphs fell to NONE"}, "graphs", "fell to NONE"),
        ({"equal_lengths": True}, "lengths", "one input and one output length"),
        ({"failed": 7}, "failed", "7 requests failed"),
        ({"at_once": 0.75}, "full", "0.8 requests ran at once in the mean"),
        ({"has_prefill": True}, "wall", "no time of a token is stated"),
        ({"prefill": 0.48}, "prefill", "48% of a request's time"),
        ({"stalls": 0.4}, "stalls", "prompts of other requests take up to 40% of the"),
        ({"drafted": 1.88}, "K", "not the same at each step: 1.88"),
        ({"temperature": 1.0}, "unlike", "temperature: 0.0 plain, 1.0 drafting"),
    ],
)
def test_a_planted_fault_of_requests_is_found(facts, kind, says):
    found = findings(with_load(clean(), **facts), {})
    [own] = [each for each in found if each.kind == kind]
    assert says in own.sentence
    assert len(found) <= 2


@pytest.mark.parametrize(
    ("facts", "kind", "says"),
    [
        ({"text": "random"}, "text", "prompts are random"),
        ({"text": "chat"}, "unlike", "text: code plain, chat drafting"),
        ({"context": 3001.0}, "context", "are 1000 tokens plain and 3001 drafting"),
        ({"length": 1.36}, "rejected", "1.36 tokens are accepted, and 97 %"),
        ({"length": 3.99}, "copied", "3.99 tokens are accepted, nearly all"),
        ({"batch": 4}, "plain", "no plain run has this batch (plain decoding ran 1)"),
        ({"deployment": Deployment(tp=2, version="1")}, "unlike", "tp: 1 plain, 2"),
        ({"length": 1.95}, "noise", "0.97 times plain decoding is within"),
    ],
)
def test_a_planted_fault_of_a_run_is_found(facts, kind, says):
    batch = facts.pop("batch", 1)
    runs = [replace(each, batch=batch if each.drafts else 1) for each in clean(**facts)]
    if kind == "noise":
        runs = [
            replace(e, step_us=e.step_us * f) for e, f in zip(runs, NOISY, strict=True)
        ]
    [own] = [each for each in findings(runs, {}) if each.kind == kind]
    assert says in own.sentence


NOISY = (0.97, 1.0, 1.03) * 2


def test_a_queue_at_other_batches_names_both():
    """Logs of 9 running and 56 waiting, and of 19 and 81."""
    [plain, *_], drafting = clean(times=1), clean(times=1)[1]
    runs = [
        replace(plain, batch=19, load=replace(plain.load, at_once=19.0, waiting=81)),
        replace(drafting, batch=9, load=replace(plain.load, at_once=9.0, waiting=56)),
    ]
    queue, batch, *_ = said(runs)
    assert "and 1 more: 81 requests waited while 19 ran" in queue
    assert "plain decoding ran 19" in batch


def test_a_log_without_a_step_is_judged_too():
    [alone] = [replace(e, step_us=None) for e in clean(times=1) if e.drafts]
    [line] = said([replace(alone, load=replace(alone.load, waiting=55))])
    assert line.startswith(f"{alone.source}: 55 requests waited")


@pytest.mark.parametrize(
    ("drafts", "step_ms", "times"), [(3, 48.2, 4.8), (8, 207, 20.7)]
)
def test_a_step_above_its_tokens_plain_steps_is_no_experts(drafts, step_ms, times):
    """4 tokens in 4.82 plain steps, and 9 in 20.7."""
    [line] = said(clean(drafts, step_ms, length=1.0 + drafts * 0.6))
    assert f"verifies {drafts + 1} tokens takes {times} plain steps: experts" in line


def test_a_step_below_plain_within_noise_is_said():
    line, _ = said(rows("1,0,20|1,3,18.57"))
    assert "verifies 4 tokens takes 0.93 plain steps; repeat both runs" in line


def test_few_requests_leave_batches_half_empty():
    few = Load(requests=3)
    runs = [replace(run, load=few) for run in rows("4,0,10|4,3,18")]
    assert "3 requests leave the last batches half empty" in " ".join(said(runs))
    runs = [replace(run, load=few) for run in rows("1,0,10|1,3,18")]
    assert "half empty" not in " ".join(said(runs))


def test_texts_that_differ_are_found():
    lengths = {"code": 3.2, "chat": 1.7}
    runs = [
        replace(run, text=text, accept_lengths={3: length} if run.drafts else {})
        for run in rows("1,0,10|1,3,18")
        for text, length in lengths.items()
    ]
    assert "code commits 3.20 tokens and chat 1.70" in " ".join(said(runs))


def test_most_runs_left_out_is_a_finding():
    left_out = dict.fromkeys("abcdefg", "others ran")
    assert said(clean(), left_out) == [
        "7 of 13 runs were left out, 7 of them because others ran"
    ]
    assert not said(clean(), {"a": "others ran"})


def test_repeats_that_differ_are_found():
    runs = [*clean()[:-1], replace(clean()[-1], step_us=30e3)]
    assert "repeated steps take 20.00 to 30.00 ms" in " ".join(said(runs))


def test_the_worst_place_comes_first_and_others_are_counted():
    plain, three = clean(times=1)
    five = replace(three, drafts=5, levels=5, width=6, accept_lengths={5: 4.0})
    waiting = [
        replace(each, load=replace(each.load, waiting=n))
        for each, n in ((plain, 0), (three, 3), (five, 9))
    ]
    line, *_ = said(waiting)
    assert line.startswith("K = 5 at batch 1 and 1 more: 9 requests waited")


def test_kinds_come_worst_first():
    runs = with_load(clean(text="random"), waiting=3, failed=2, prefill=0.5)
    assert kinds(runs) == ["queue", "unlike", "text", "failed", "prefill"]


def test_a_rate_of_one_request_is_found_by_a_step_longer_than_its_requests():
    """41.7 tokens a second of each of four were read as of all four."""
    [found] = [f for f in findings(rows("1,0,14.2|4,0,95.9"), {}) if f.kind == "one"]
    assert "6.8 times that of batch 1" in found.sentence
    assert "one" not in kinds(rows("1,0,14.2|4,0,24.0"))


def test_runs_that_ran_once_are_a_remark_and_no_fault():
    [found] = findings(clean(times=1), {})
    assert found.sentence.startswith("2 of 2 settings ran once, so a speed-up is known")
    assert not is_fault(found)


def test_the_noise_of_single_runs_is_one_number():
    """Two findings say how far a speed-up is known: 1.96 of 5 %, twice."""
    runs = [run(), run(1, 3, 20.0, length=1.95)]
    said = {each.kind: each.sentence for each in findings(runs, {})}
    assert "is within 15%" in said["noise"]
    assert "is known to 15%; run each 3 times for 8%" in said["once"]


def test_what_no_run_states_is_unknown():
    missing = unknown([run(), run(1, 3, 20.0)])
    assert missing[:2] == ["the text", "the temperature"]
    assert "requests that waited" in missing
    assert any("CUDA graphs" in each for each in missing)


def test_flags_that_an_engine_sets_to_draft_are_alike():
    flags = {"disable_overlap_schedule": True}
    assert not said(clean(deployment=replace(SERVER, flags=flags)))


@given(st.floats(UNUSUAL + 0.01, 0.9), st.integers(1, 16))
def test_usual_lengths_are_believed(rate, drafts):
    length = float(of_rate(rate).committed[drafts])
    assert not {"rejected", "copied"} & {*kinds(clean(drafts, 10.0, length=length))}


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
    return rows.fillna({"tree_topk": 1}).astype({"K": int, "tree_topk": int})


def test_the_limit_of_acceptance_is_that_of_published_chains(public):
    chains = public[public.tree_topk == 1]
    lengths = zip(chains.K, chains.accept_length, strict=True)
    found = [kinds([run(1, k, accept_lengths={k: length})]) for k, length in lengths]
    assert len(chains) == 324
    assert np.mean(["rejected" in each for each in found]) == pytest.approx(
        0.03, abs=0.005
    )
    assert sum("copied" in each for each in found) == 1
    assert ((chains.accept_length - 1.0) / chains.K > ALL).sum() == 1

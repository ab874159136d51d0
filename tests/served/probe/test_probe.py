"""A server of known steps is probed through the command, with and without faults."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evict_profile.served.probe import loop, server
from evict_profile.served.readers import read
from evict_profile.served.setting import settings_of
from tests.command import evict
from tests.served.probe.fake_server import FakeServer

DEV = {"/server_info": '{"vllm_config": "..."}'}
CHAT = '{"error": {"message": "no\\n chat template"}}'
SGLANG, SPEC = {"engine": "sglang"}, "speculative_"


def probe(fake, folder, *words, minutes="0.01", batch="1,2"):
    words = ("--batch", batch, "--minutes", minutes, "--out", "runs.jsonl", *words)
    return evict("probe", fake.url, *words, folder=folder)


def refused(url, folder, *words):
    """The last line of stderr, below what the probe shows of its progress."""
    words = ("--batch", "1", "--minutes", "0.02", "--out", "runs.jsonl", *words)
    done = evict("probe", url, *words, folder=folder)
    assert done.exit_code == 2, done.output
    assert done.stderr.splitlines()[-1].startswith("error: ")
    return done.stderr.splitlines()[-1]


def probed(fake, folder, *words, **options):
    """The settings that were probed."""
    done = probe(fake, folder, *words, **options)
    assert done.exit_code == 0, done.output
    return settings_of(read(folder / "runs.jsonl").runs)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(loop, "PAUSE_S", 0.01)
    monkeypatch.setattr(loop, "SETTLE_S", 0.1)

    monkeypatch.setattr(server, "READ_TIMEOUT_S", 5.0)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_known_step_is_found(engine, tmp_path):
    with FakeServer(engine, step_s=0.02) as fake:
        found = probed(fake, tmp_path)
    assert [each.batch for each in found] == [1, 2]
    assert fake.fields["skip_special_tokens"] is False
    for each in found:
        assert each.accept_length.value == pytest.approx(fake.accepted, rel=0.05)
        # A thread may sleep longer than it is asked to, and never for less.
        assert each.step_us.value > 0.9 * 20e3
        [about, *_] = each.runs
        k = 5 if engine == "sglang" else 3
        assert (about.deployment.engine, each.drafts) == (engine, k)


@pytest.mark.parametrize(
    ("server", "words", "drafts"),
    [
        ({"others": "NaN", "adds": "some words"}, (), 3),
        ({"drafts": 0}, (), 0),
        ({"breaks": 2}, (), 3),
        # A vLLM for developers answers /server_info, as SGLang does.
        ({"replaces": DEV, "models": ("a", "b")}, ("--model", "b"), 3),
    ],
)
def test_an_odd_server_is_probed(server, words, drafts, tmp_path):
    with FakeServer(**server) as fake:
        [found] = probed(fake, tmp_path, *words, batch="1")
    about = found.runs[0].deployment
    assert (about.engine, about.version, found.drafts) == ("vllm", "0.25.1", drafts)
    assert about.model == fake.models[-1]
    assert found.accept_length.value == pytest.approx(fake.accepted, rel=0.1)


ADAPTIVE = SGLANG | {"stated": {SPEC + "adaptive": True}}


@pytest.mark.parametrize(
    ("server", "drafts"),
    # No step but a reply's first drafts, as where a schedule has K = 0.
    [({"drafts": 5, "drafted": 4}, 4), ({"idle": 10**9}, 0)],
)
def test_a_server_of_another_k_than_it_states_is_probed(server, drafts, tmp_path):
    with FakeServer(step_s=0.02, **server) as fake:
        [found] = probed(fake, tmp_path, batch="1")
    assert (found.drafts, found.width) == (drafts, drafts + 1)
    assert found.step_us.value > 0.9 * 20e3


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"idle": 1}, "K is not the same at each step: 1.5"),
        ({"adds": "evict_profile:width 1.0"}, "the server changes K while it runs"),
        (ADAPTIVE, "the server changes K while it runs"),
        (ADAPTIVE | {"drafted": 2}, "the server changes K while it runs"),
    ],
)
def test_a_server_that_changes_its_k_makes_no_table(server, says, tmp_path):
    with FakeServer(step_s=0.02, **server) as fake:
        done = probe(fake, tmp_path, batch="1")
    assert done.exit_code == 0, done.output
    assert says in done.stdout
    words = ("import", "runs.jsonl", "--model", "tiny", "--gpu", "g")
    assert evict(*words, folder=tmp_path).exit_code == 2


@pytest.mark.parametrize(
    ("drafts", "step"),
    [
        ((3,), "next: probe the server without drafts into the same file, runs.jsonl"),
        ((0,), "next: probe the server again with K = 3 into the same file"),
        ((0, 3), "next: evict-profile import runs.jsonl --model NAME --gpu NAME"),
    ],
)
def test_its_end_says_what_comes_next(drafts, step, tmp_path):
    with FakeServer(step_s=0.02) as fake:
        for fake.drafts in drafts:
            done = probe(fake, tmp_path, batch="1")
    assert step in done.stdout
    assert "Not known from these runs: " in done.stdout


def test_tensorrt_llm_states_tokens_of_a_step_in_its_replies(tmp_path):
    with FakeServer("trtllm", step_s=0.02) as fake:
        [found] = probed(fake, tmp_path, "--drafts", "3", batch="1")
    assert (found.runs[0].deployment.engine, found.drafts) == ("trtllm", 3)
    # 52 steps commit what follows the first of 128 tokens: 1 to 4 by turns.
    assert found.accept_length.value == pytest.approx(127 / 52)
    assert found.step_us.value > 0.9 * 20e3


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_a_certificate_that_is_not_trusted_is_named(tmp_path, monkeypatch):
    """And SSL_CERT_FILE, which the sentence names, makes it trusted."""
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=a -addext"
    words = ["openssl", *words.split(), "subjectAltName=IP:127.0.0.1", "-out", "cert"]
    subprocess.run([*words, "-keyout", "key"], cwd=tmp_path, check=True)
    both = tmp_path / "both.pem"
    both.write_text((tmp_path / "cert").read_text() + (tmp_path / "key").read_text())
    with FakeServer(cert=str(both)) as fake:
        assert "set SSL_CERT_FILE" in refused(fake.url, tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
        assert probed(fake, tmp_path, batch="1")


def test_the_same_command_continues_and_another_k_is_added(tmp_path):
    """Unless its minutes are spent; a line that a kill cut is dropped."""
    runs = tmp_path / "runs.jsonl"
    with FakeServer() as fake:
        probed(fake, tmp_path, batch="1")
        before = runs.read_text()
        spent = probe(fake, tmp_path, batch="1,2")
        assert spent.exit_code == 2
        assert "--minutes 0.01 leaves none to measure" in spent.stderr
        runs.write_text(before + '{"round": 9, "bat')
        probed(fake, tmp_path, batch="1", minutes="0.03")
        fake.drafts = 1
        found = probed(fake, tmp_path, batch="1")
    text = runs.read_text()
    assert text.startswith(before)
    assert [each.drafts for each in found] == [1, 3]
    rounds = [json.loads(line).get("round", 0) for line in text.splitlines()]
    first = rounds[: rounds.index(0, before.count("\n") + 1)]
    assert [n for n in first if n] == list(range(1, max(first) + 1))


@pytest.mark.parametrize(
    ("faults", "words", "says"),
    [
        ({"breaks": 99}, (), "the connection broke"),
        ({"refuses": 429}, (), "refuses so many requests at once"),
        ({"refuses": 500}, (), "answers 500"),
        (
            {"refuses": 400, "says": CHAT},
            (),
            "answers 400: no chat template; try --raw",
        ),
        ({"refuses": 400, "says": '{"detail": "unknown field"}'}, (), "unknown field"),
        ({"models": ("a", "b")}, (), "lists a, b; name one of those with --model"),
        ({}, ("--model", "a"), "lists tiny; name one"),
        ({"models": ()}, (), "lists no model"),
        ({"replaces": {"/v1/models": "<html>"}}, (), "lists no model"),
        ({"replaces": {"/chat": "data: {not JSON"}}, (), "the connection broke"),
        ({"key": "secret"}, (), "set OPENAI_API_KEY"),
        ({"others": 2}, (), "runs 2 requests of others"),
        ({"metrics": False}, (), "give --drafts"),
        ({"stats": False}, (), "give --drafts"),
        ({}, ("--drafts", "0"), "states K = 3, and --drafts 0 was given"),
        ({"engine": "sglang", "drafts": 0}, ("--drafts", "3"), "states K = 0"),
        ({"engine": "trtllm"}, (), "give --drafts"),
        (SGLANG | {"stated": {SPEC + "num_steps": None}}, (), "--drafts"),
        (SGLANG | {"stated": {SPEC + "num_draft_tokens": None}}, (), "--drafts"),
        ({"counts": False}, (), "without --disable-log-stats"),
        ({"ends_at": 6}, (), "decode side by side for fewer than 8"),
        ({"after": {3: {"drafts": 1}}}, (), "drafts: 1 now, 3 before"),
    ],
)
def test_a_fault_is_one_sentence(faults, words, says, tmp_path):
    with FakeServer(**faults) as fake:
        assert says in refused(fake.url, tmp_path, *words)


def test_a_server_that_counts_nothing_is_refused_before_the_minutes(tmp_path):
    """Its rate would be known, and its steps would not."""
    with FakeServer(metrics=False) as fake:
        done = probe(fake, tmp_path, "--drafts", "3", batch="1")
    assert done.exit_code == 2
    assert "no accepted length is stated" in done.stderr
    assert fake.asked == 1 and not (tmp_path / "runs.jsonl").exists()


SHORT, LONG = {"ends_at": 6}, {"ends_at": 10**9}


@pytest.mark.parametrize(
    ("after", "why", "waves"),
    [
        # The first wave warms up, and is asked again.
        ({1: SHORT, 2: LONG}, "probe a smaller --batch", 0),
        ({2: SHORT, 3: LONG}, "probe a smaller --batch", 1),
        # A server may change its K by batch or by load.
        ({2: {"drafted": 1}, 3: {"drafted": 0}}, "1.00 tokens were drafted", 1),
        ({3: {"others": 5}, 4: {"others": 0}}, "requests of others", 1),
    ],
)
def test_an_odd_wave_is_left_out(after, why, waves, tmp_path):
    with FakeServer(after=after) as fake:
        done = probe(fake, tmp_path, batch="1", minutes="0.03")
    assert done.exit_code == 0, done.output
    found = read(tmp_path / "runs.jsonl")
    assert sum(why in each for each in found.left_out.values()) == waves
    assert found.runs[0].accept_length == pytest.approx(fake.accepted, rel=0.05)
    assert (f"left out: {waves} run" in done.stdout) == bool(waves)


def test_a_count_that_lags_behind_the_last_reply_is_waited_for(tmp_path):
    """Each wave leaves a request in the count, for less than it takes to settle."""
    with FakeServer(engine="sglang", lags_s=0.05) as fake:
        probed(fake, tmp_path)
    left_out = read(tmp_path / "runs.jsonl").left_out.values()
    assert not any("requests of others" in each for each in left_out)


def test_ctrl_c_keeps_what_was_probed(tmp_path):
    with FakeServer() as fake:
        words = ["probe", fake.url, "--batch", "1", "--out", "runs.jsonl"]
        process = subprocess.Popen(
            [sys.executable, "-m", "evict_profile", *words],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        while fake.asked < 4:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "the same command continues it" in said
    assert read(tmp_path / "runs.jsonl").runs


def test_credentials_are_sent_and_not_written(tmp_path, monkeypatch):
    """A local server is asked without a proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with FakeServer() as fake:
        url = fake.url.replace("//", "//user:s3cret@")
        words = ("--batch", "1", "--minutes", "0.01", "--out", "new/runs.jsonl")
        done = evict("probe", url, *words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert fake.sent["Authorization"].startswith("Basic ")
    assert "s3cret" not in done.output + (tmp_path / "new/runs.jsonl").read_text()
    said = refused("http://user:s3cret@[::1", tmp_path)
    assert "fix the URL" in said and "s3cret" not in said


def test_a_file_of_other_bytes_is_one_sentence(tmp_path):
    (tmp_path / "runs.jsonl").write_bytes(b"\xff\xfe\x00")
    with FakeServer() as fake:
        assert "cannot be read" in refused(fake.url, tmp_path)


def test_prompts_of_a_file_are_sent_and_named(tmp_path):
    (tmp_path / "mine.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    with FakeServer() as fake:
        [found] = probed(fake, tmp_path, "--prompts", "mine.txt", batch="1")
        assert fake.said.endswith((" one", " two"))
        (tmp_path / "mine.txt").write_text(" \n\n", encoding="utf-8")
        assert "holds no text" in refused(fake.url, tmp_path, "--prompts", "mine.txt")
    assert {run.text for run in found.runs} == {"chat of mine.txt"}

"""A server of known steps is probed through the command, with and without faults."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from evict_profile.calibrate.probed import settings
from evict_profile.probe import loop, server
from evict_profile.report.served import show_settings
from tests.command import evict
from tests.probe.fake_server import FakeServer


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
    done = probe(fake, folder, *words, **options)
    assert done.exit_code == 0, done.output
    return settings(folder / "runs.jsonl")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(loop, "PAUSE_S", 0.01)
    monkeypatch.setattr(server, "READ_TIMEOUT_S", 5.0)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_known_step_is_found(engine, tmp_path):
    with FakeServer(engine, step_s=0.02) as fake:
        found = probed(fake, tmp_path)
    assert [each.batch for each in found] == [1, 2]
    for each in found:
        assert each.committed == pytest.approx(fake.accepted, rel=0.05)
        # A thread may sleep longer than it is asked to, and never for less.
        assert each.step_us.value > 0.9 * 20e3
        about = each.server
        assert (about.engine, about.drafts) == (engine, 5 if engine == "sglang" else 3)


def test_a_gauge_that_is_no_number_is_none(tmp_path):
    with FakeServer(others="NaN", adds="some words") as fake:
        [found] = probed(fake, tmp_path, batch="1")
    assert found.committed == pytest.approx(fake.accepted, rel=0.05)


def test_a_plain_server_commits_a_token_a_step(tmp_path):
    with FakeServer(drafts=0) as fake:
        [found] = probed(fake, tmp_path, batch="1")
    assert (found.server.drafts, found.committed) == (0, 1.0)


def test_a_vllm_for_developers_is_one(tmp_path):
    """It answers /server_info, as SGLang does."""
    dev = {"/server_info": '{"vllm_config": "..."}'}
    with FakeServer(replaces=dev, models=("a", "b")) as fake:
        [found] = probed(fake, tmp_path, "--model", "b", batch="1")
    about = found.server
    assert (about.engine, about.version, about.model) == ("vllm", "0.25.1", "b")


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
    with FakeServer() as fake:
        probed(fake, tmp_path, batch="1")
        before = (tmp_path / "runs.jsonl").read_text()
        done = probe(fake, tmp_path, batch="1", minutes="0.03")
        assert done.exit_code == 0, done.output
        fake.drafts = 1
        found = probed(fake, tmp_path, batch="1")
    text = (tmp_path / "runs.jsonl").read_text()
    assert text.startswith(before)
    assert [each.server.drafts for each in found] == [3, 1]
    rounds = [json.loads(line).get("round", 0) for line in text.splitlines()]
    first = rounds[: rounds.index(0, before.count("\n") + 1)]
    assert [n for n in first if n] == list(range(1, max(first) + 1))


def test_a_line_that_a_kill_cut_is_dropped(tmp_path):
    with FakeServer() as fake:
        probed(fake, tmp_path, batch="1")
        whole = (tmp_path / "runs.jsonl").read_text()
        (tmp_path / "runs.jsonl").write_text(whole + '{"round": 9, "bat')
        probed(fake, tmp_path, batch="1", minutes="0.03")
    assert (tmp_path / "runs.jsonl").read_text().startswith(whole)


def test_minutes_that_are_spent_measure_nothing(tmp_path):
    with FakeServer() as fake:
        probed(fake, tmp_path, batch="1")
        done = probe(fake, tmp_path, batch="1,2")
    assert done.exit_code == 2
    assert "--minutes 0.01 leaves none to measure" in done.stderr


def test_a_broken_stream_is_asked_again(tmp_path):
    with FakeServer(breaks=2) as fake:
        [found] = probed(fake, tmp_path, batch="1")
    assert found.committed == pytest.approx(fake.accepted, rel=0.1)


@pytest.mark.parametrize(
    ("faults", "words", "says"),
    [
        ({"breaks": 99}, (), "the connection broke"),
        ({"refuses": 429}, (), "refuses so many requests at once"),
        ({"refuses": 500}, (), "answers 500"),
        (
            {"refuses": 400, "says": '{"error": {"message": "no\\n chat template"}}'},
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
        ({"drafted": 1}, (), "1.00 tokens are drafted a step, and K = 3 is stated"),
        ({"engine": "sglang", "drafted": 1}, (), "and K = 5 is stated"),
        ({"idle": 1}, (), "no ngram or suffix"),
        ({"adds": "evict_profile:width 1.0"}, (), "EVICT_PROFILE_MODE=off"),
        (
            {"engine": "sglang", "stated": {"speculative_adaptive": True}},
            (),
            "--speculative-adaptive",
        ),
        *(
            ({"engine": "sglang", "stated": {f"speculative_{n}": None}}, (), "--drafts")
            for n in ("num_steps", "num_draft_tokens")
        ),
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


@pytest.mark.parametrize("number", [1, 2])
def test_an_odd_wave_is_left_out(number, tmp_path):
    """Be it the first, which warms up and is asked again, or one that is counted."""
    after = {number: {"ends_at": 6}, number + 1: {"ends_at": 10**9}}
    with FakeServer(after=after) as fake:
        [found] = probed(fake, tmp_path, batch="1", minutes="0.03")
    odd = [why for why in found.left_out if "probe a smaller --batch" in why]
    assert len(odd) == number - 1


def test_a_wave_of_another_k_is_left_out(tmp_path):
    """A server may change its K by batch or by load."""
    with FakeServer(after={2: {"drafted": 1}, 3: {"drafted": 0}}) as fake:
        [found] = probed(fake, tmp_path, batch="1", minutes="0.03")
    assert any("1.00 tokens are drafted" in why for why in found.left_out)
    assert found.committed == pytest.approx(fake.accepted, rel=0.05)


def test_waves_beside_others_are_left_out(tmp_path):
    with FakeServer(after={3: {"others": 5}, 4: {"others": 0}}) as fake:
        [found] = probed(fake, tmp_path, batch="1", minutes="0.03")
    assert any("requests of others" in why for why in found.left_out)
    shown = StringIO()
    show_settings(Console(file=shown, width=200), [found])
    assert "step, us" in shown.getvalue()
    assert "left out: requests of others" in shown.getvalue()


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
    [found] = settings(tmp_path / "runs.jsonl")
    assert found.runs


def test_credentials_are_sent_and_not_written(tmp_path):
    with FakeServer() as fake:
        url = fake.url.replace("//", "//user:s3cret@")
        words = ("--batch", "1", "--minutes", "0.01", "--out", "new/runs.jsonl")
        done = evict("probe", url, *words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert fake.sent["Authorization"].startswith("Basic ")
    assert "s3cret" not in done.output + (tmp_path / "new/runs.jsonl").read_text()


def test_a_local_server_is_asked_without_a_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with FakeServer() as fake:
        assert probed(fake, tmp_path, batch="1")


def test_a_password_in_what_is_no_url_is_not_printed(tmp_path):
    said = refused("http://user:s3cret@[::1", tmp_path)
    assert "fix the URL" in said and "s3cret" not in said


def test_a_file_of_other_bytes_is_one_sentence(tmp_path):
    (tmp_path / "runs.jsonl").write_bytes(b"\xff\xfe\x00")
    with FakeServer() as fake:
        assert "cannot be read" in refused(fake.url, tmp_path)

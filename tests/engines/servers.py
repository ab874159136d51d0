"""Servers of real engines on loopback: started, probed, and asked for replies."""

import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from evict_profile.probe.record import append, read_probe
from evict_profile.records import replace
from tests.command import evict

LONGEST_S = 400.0
MINUTES = 0.02
"""Of each probe: one round, since no clock is judged."""

PROBE = ("--raw", "--batch", "1,2", "--minutes", MINUTES, "--out", "runs.jsonl")
PROMPTS = (
    "hello world", "import os", "def f(x):\n    return", "The quick brown fox",
    "class A:", "for i in range(", "a b c d e", "json.loads(",
)  # fmt: skip

_open = build_opener(ProxyHandler({})).open


def needs(module):
    """Skip a file whose engine this environment lacks, and say how to run it."""
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"no {module} here: make test-engines")


@contextmanager
def serving(words, log, **variables):
    """Start a server; yields its URL, and ends all its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fixed = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment = os.environ | fixed | variables
    # Only the tests of kernels want it.
    environment.pop("TRITON_INTERPRET", None)
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        child = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        _await(url, child, log)
        yield url
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _await(url, child, log):
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end and child.poll() is None:
        try:
            return _open(f"{url}/v1/models", timeout=5.0).close()
        except (URLError, OSError):
            time.sleep(0.5)
    pytest.fail("no server answers:\n" + "\n".join(log.read_text().splitlines()[-40:]))


def get(url):
    with _open(url, timeout=60.0) as reply:
        return reply.read().decode()


def replies(url):
    """Greedy replies to all prompts, one at a time: a batch that every table has."""

    def ask(prompt):
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": 64}
        asked |= {"temperature": 0, "ignore_eos": True}
        kind = {"Content-Type": "application/json"}
        request = Request(f"{url}/v1/completions", json.dumps(asked).encode(), kind)
        with _open(request, timeout=120.0) as reply:
            return json.load(reply)["choices"][0]["text"]

    return [ask(prompt) for prompt in PROMPTS]


def probe(folder, url):
    """Probe a server; returns what the folder's file has of each server."""
    done = evict("probe", url, *PROBE, folder=folder)
    assert done.exit_code == 0, done.output
    return read_probe(folder / "runs.jsonl")


def accepted(waves):
    """Mean accepted length of waves."""
    lengths = [wave.accepted or 1.0 for wave in waves]
    return sum(lengths) / len(lengths)


def make_table(folder, urls, model):
    """Probe servers, and make a table of what they state; returns its path.

    A busy machine's clock is no subject here, so steps are planted: each token that is
    verified adds a tenth of a plain step. Each wave counts twice, for a spread.
    """
    for url in urls:
        found = probe(folder, url)
    steady = folder / "steady.jsonl"
    for probed, waves in found:
        append(steady, probed)
        step_s = 0.01 * (1.0 + 0.1 * probed.server.drafts)
        for wave in 2 * waves:
            tokens = wave.batch * (wave.accepted or 1.0)
            append(steady, replace(wave, tokens_per_s=tokens / step_s))
    words = ("--served", steady, "--model", model, "--gpu", "cpu")
    done = evict("calibrate", *words, "--tables", "tables", folder=folder)
    assert done.exit_code == 0, done.output
    [path] = (folder / "tables").rglob("*.json")
    return path


def printed_command(folder, table, engine, accept):
    """The words of the command that `export --for` prints, and the file it wrote."""
    words = ("export", table, "--for", engine, "--accept", accept)
    done = evict(*words, folder=folder)
    assert done.exit_code == 0, done.output
    *_, command = done.stdout.strip().splitlines()
    return shlex.split(command), json.loads((folder / f"{engine}.json").read_text())

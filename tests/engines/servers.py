"""Servers of real engines on loopback: started, probed, and asked for replies."""

import hashlib
import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from evict_profile.records import replace
from evict_profile.served.probe.loop import ProbeConfig, prompts_of
from evict_profile.served.probe.record import (
    DRAFTED_TOLERANCE,
    append,
    drafted_of,
    read_probe,
)
from evict_profile.served.probe.wave import REPLY_TOKENS
from tests.command import evict

LONGEST_S = 900.0
FOUND, ROUTES, REPLIES = "runs.jsonl", "routes.jsonl", Path("build/engines")
"""The files of all probes, and the folder of replies that engines share."""

PROMPTS = (
    "hello world", "import os", "def f(x):\n    return", "The quick brown fox",
    "class A:", "for i in range(", "a b c d e", "json.loads(",
)  # fmt: skip

_open = build_opener(ProxyHandler({})).open


@dataclass(frozen=True)
class Engine:
    """How servers start, from the folder of models.

    Attributes:
        launch: adds what all servers have in common to words of one.
        returns_routes: whether a server states the experts of each token.
    """

    name: str
    launch: Callable[..., list[str]]
    plain: Callable[[Path], tuple[str, ...]]
    drafting: Callable[[Path], tuple[str, ...]]
    variables: Mapping[str, str] = field(default_factory=dict)
    returns_routes: bool = False

    def serving(self, words, log, **variables):
        return serving(self.launch(*words), log, **self.variables, **variables)

    def probe(self, folder, url):
        probe(folder, url)
        if self.returns_routes:
            probe(folder, url, "--routes", batches="1,2,4", out=ROUTES)


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
        with suppress(ProcessLookupError):
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


def post(url, asked):
    kind = {"Content-Type": "application/json"}
    request = Request(url, json.dumps(asked).encode(), kind)
    with _open(request, timeout=LONGEST_S) as reply:
        return json.load(reply)


def token_ids(url, prompt, tokens=REPLY_TOKENS):
    """Of a prompt, and of the greedy reply to it."""
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": tokens}
    asked |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    [said] = post(f"{url}/v1/completions", asked)["choices"]
    return said["prompt_token_ids"], said["token_ids"]


def replies(url):
    """Tokens of all replies, one at a time: a batch that every table has.

    Engines differ in how they write a character that is not whole at the end.
    """
    return [token_ids(url, prompt, 64) for prompt in PROMPTS]


def texts(number, batch):
    """The prompts of a probe's wave."""
    return prompts_of(ProbeConfig((), 0.0, None, raw=True).texts, number, batch)


def of_repeats(url, waves, drafts):
    """Accepted length of drafts that repeat the last token, by a server's replies."""
    committed = steps = 0
    for wave in waves:
        for prompt in texts(wave.round, wave.batch):
            _, reply = token_ids(url, prompt)
            committed += len(reply) - 1  # The first token is of prefill.
            steps += _steps(reply, drafts)
    return committed / steps


def _steps(reply, drafts):
    last = steps = 0
    while last < len(reply) - 1:
        coming = [token == reply[last] for token in reply[last + 1 :][:drafts]]
        last += 1 + [*coming, False].index(False)
        steps += 1
    return steps


def check_probe(engine, folder, plain):
    """K is stated, and the accepted length is that of the replies' repeats."""
    (none, alone), (three, waves), *_ = read_probe(folder / FOUND)
    assert (none.server.engine, none.server.drafts) == (engine.name, 0)
    assert (three.server.drafts, three.server.levels) == (3, 3)
    assert accepted(alone) == 1.0
    lengths = accepted(waves), of_repeats(plain, waves, 3)
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05) and lengths[1] > 1.2


def check_schedule(folder, url, drafts):
    """A server drafts so many tokens by batch."""
    batches = ",".join(map(str, drafts))
    [(probed, waves)] = probe(folder, url, batches=batches, out="schedule.jsonl")
    found = {wave.batch: drafted_of(probed.server, wave) for wave in waves}
    assert found == pytest.approx(drafts, rel=DRAFTED_TOLERANCE, abs=DRAFTED_TOLERANCE)


def check_replies(engine, url, models):
    """Replies are those of the engines that were asked before, of the same weights."""
    weights = (models / "target/model.safetensors").read_bytes()
    own = REPLIES / f"{engine}.json"
    REPLIES.mkdir(parents=True, exist_ok=True)
    own.write_text(json.dumps([hashlib.sha256(weights).hexdigest(), replies(url)]))
    others = {*REPLIES.glob("*.json")} - {own}
    if not others:
        pytest.skip("no other engine was asked yet: make test-engines asks two")
    assert {each.read_text() for each in others} == {own.read_text()}


def probe(folder, url, *words, batches="1", out=FOUND):
    """Probe a server for one round, since no clock is judged.

    Two requests may miss each other on a busy machine. Returns what the file has.
    """
    words = ("--raw", "--batch", batches, "--minutes", 1e-9, "--out", out, *words)
    done = evict("probe", url, *words, folder=folder)
    assert done.exit_code == 0, done.output
    return read_probe(folder / out)


def accepted(waves):
    """Mean accepted length of waves."""
    lengths = [wave.accepted or 1.0 for wave in waves]
    return sum(lengths) / len(lengths)


def make_table(folder, model):
    """Make a table of what probed servers state; returns its path.

    A busy machine's clock is no subject here, so steps are planted: each token that is
    verified adds a tenth of a plain step. Each wave counts twice, for a spread.
    """
    steady = folder / "steady.jsonl"
    for probed, waves in read_probe(folder / FOUND):
        append(steady, probed)
        step_s = 0.01 * (1.0 + 0.1 * probed.server.drafts)
        for wave in 2 * waves:
            tokens = wave.batch * (wave.accepted or 1.0)
            append(steady, replace(wave, tokens_per_s=tokens / step_s))
    words = (steady, "--model", model, "--gpu", "cpu")
    done = evict("import", *words, "--tables", "tables", folder=folder)
    assert done.exit_code == 0, done.output
    [path] = (folder / "tables").rglob("*.json")
    return path


def advised(folder, table, engine, *words):
    """The words of the command that `export --for` prints, and the file it wrote.

    The accepted lengths are those of the probes. `advise` answers first.
    """
    done = evict("advise", table, "--accept", FOUND, *words, folder=folder)
    assert done.exit_code == 0 and "K = 3, its step as you measured" in done.output, (
        done.output
    )
    words = ("export", table, "--for", engine, "--accept", FOUND, *words)
    done = evict(*words, folder=folder)
    assert done.exit_code == 0, done.output
    *_, command = done.stdout.strip().splitlines()
    return shlex.split(command), json.loads((folder / f"{engine}.json").read_text())

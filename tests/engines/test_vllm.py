"""vLLM's server over HTTP: probed, made a table of, advised, and started again."""

import json
import sys

import pytest

from evict_profile.probe.record import read_probe
from tests.command import evict
from tests.engines import servers

pytestmark = servers.needs("vllm")

CPU = (
    "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "2048",
    "--enforce-eager", "--max-num-seqs", "8",
)  # fmt: skip
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
}
ACCEPT = "3:3.9"
"""Made up: the random drafter is never right, and vLLM on a CPU pins no length."""


def launch(*words):
    """The `vllm` command of vllm-cpu does not start; its module does."""
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words, *CPU]


def speculation(config):
    return ("--speculative-config", json.dumps(config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def plain(models, folder):
    words = launch("--model", str(models / "target"))
    with servers.serving(words, folder / "plain.log", **VARIABLES) as url:
        yield url


@pytest.fixture(scope="module")
def table(models, folder, plain):
    """A table of plain decoding and of K = 3."""
    eagle = {"method": "eagle3", "num_speculative_tokens": 3}
    eagle["model"] = str(models / "draft")
    words = launch("--model", str(models / "target"), *speculation(eagle))
    with servers.serving(words, folder / "drafting.log", **VARIABLES) as url:
        config = models / "target/config.json"
        return servers.make_table(folder, (plain, url), config)


def test_a_probe_finds_k_and_the_accepted_length(table, folder):
    (none, plain), (three, waves) = read_probe(folder / "runs.jsonl")
    assert (none.server.engine, none.server.drafts) == ("vllm", 0)
    assert (three.server.drafts, three.server.levels) == (3, 3)
    assert servers.accepted(plain) == 1.0
    assert servers.accepted(waves) == pytest.approx(1.0, rel=0.1)


def test_the_printed_command_starts_the_server_that_was_advised(table, models, folder):
    """Its K is what the next probe of it finds; the plug-in loads, and is off."""
    done = evict("advise", table, "--accept", ACCEPT, folder=folder)
    assert done.exit_code == 0, done.output
    words, fields = servers.printed_command(folder, table, "vllm", ACCEPT)
    vllm, serve, model, flag, config = words
    assert (vllm, serve, model, flag) == (
        "vllm", "serve", "MODEL", "--speculative-config"
    )  # fmt: skip
    config = json.loads(config) | {"model": str(models / "draft")}
    words = launch("--model", str(models / "target"), *speculation(config))
    log, asked = folder / "advised.log", {"EVICT_PROFILE_TABLE": str(table)}
    with servers.serving(words, log, **VARIABLES, **asked) as url:
        *_, (found, _) = servers.probe(folder, url)
    assert found.server.drafts == fields["num_speculative_tokens"]
    said = [each for each in log.read_text().splitlines() if "evict-profile:" in each]
    assert len(said) == 1, said
    assert "off, vLLM keeps its own curves: adaptive verification is off" in said[0]

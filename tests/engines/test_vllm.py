"""vLLM's server over HTTP: probed, made a table of, advised, and started again."""

import json
import sys

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


def launch(*words):
    """The `vllm` command of vllm-cpu does not start; its module does."""
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words, *CPU]


def drafting(models, config):
    config = json.dumps(config | {"model": str(models / "draft")})
    return ("--model", str(models / "target"), "--speculative-config", config)


EAGLE = {"method": "eagle3", "num_speculative_tokens": 3}
SCHEDULE = [[1, 1, 3], [2, 3, 1], [4, 8, 0]]
ENGINE = servers.Engine(
    "vllm",
    launch,
    lambda models: ("--model", str(models / "target")),
    lambda models: drafting(models, EAGLE),
    VARIABLES,
)


def test_a_probe_finds_k_and_the_accepted_length(table, engine, folder, plain):
    servers.check_probe(engine, folder, plain)


def test_replies_are_those_of_sglang(engine, plain, models):
    servers.check_replies(engine.name, plain, models)


def test_the_printed_command_starts_the_server_that_was_advised(
    table, engine, models, folder
):
    """Its K is what the next probe of it finds; the plug-in loads, and is off."""
    words, fields = servers.advised(folder, table, "vllm")
    assert words[:3] == ["vllm", "serve", "MODEL"]
    drafter = str(models / "draft")
    rest = [word.replace("DRAFTER", drafter) for word in words[3:]]
    words, log = (*engine.plain(models), *rest), folder / "advised.log"
    asked = {"EVICT_PROFILE_TABLE": str(table)}
    with engine.serving(words, log, **asked) as url:
        *_, (found, _) = servers.probe(folder, url)
    assert found.server.drafts == fields["num_speculative_tokens"]
    said = [each for each in log.read_text().splitlines() if "evict-profile:" in each]
    assert len(said) == 1, said
    assert "off, vLLM keeps its own curves: adaptive verification needs" in said[0]
    assert "start vLLM on a GPU" in said[0]


def test_a_schedule_drafts_by_batch_as_the_probe_counts(engine, models, folder):
    schedule = {"num_speculative_tokens_per_batch_size": SCHEDULE}
    words = drafting(models, EAGLE | schedule)
    with engine.serving(words, folder / "schedule.log") as url:
        servers.check_schedule(folder, url, {1: 3, 2: 1, 4: 0})

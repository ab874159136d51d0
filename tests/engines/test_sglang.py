"""SGLang's server over HTTP: probed, made a table of, advised, and started again."""

import sys

import pytest

from evict_profile.config import load_model
from evict_profile.probe.record import read_probe
from tests.command import evict
from tests.engines import servers
from tests.sglang.serving import table_of

pytestmark = servers.needs("sglang")

CPU = (
    "--served-model-name", "tiny", "--dtype", "float32", "--device", "cpu",
    "--attention-backend", "intel_amx", "--sampling-backend", "pytorch",
    "--disable-cuda-graph", "--max-total-tokens", "8192", "--mem-fraction-static",
    "0.2", "--max-running-requests", "8", "--enable-metrics", "--sleep-on-idle",
)  # fmt: skip
LENGTH = 3.5
SIMULATED = {"SGLANG_SIMULATE_ACC_LEN": str(LENGTH)}
WIDTHS = (1, 2, 4, 8)


def launch(*words):
    return [sys.executable, "-m", "sglang.launch_server", *words, *CPU]


def drafting(models, topk, tokens):
    return (
        "--model-path", str(models / "target"), "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(models / "draft"),
        "--speculative-eagle-topk", str(topk), "--speculative-num-steps", "3",
        "--speculative-num-draft-tokens", str(tokens),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module")
def plain(models, folder):
    words = launch("--model-path", str(models / "target"))
    with servers.serving(words, folder / "plain.log") as url:
        yield url


@pytest.fixture(scope="module")
def table(models, folder, plain):
    """A table of plain decoding and of K = 3."""
    words, log = launch(*drafting(models, 1, 4)), folder / "drafting.log"
    with servers.serving(words, log, **SIMULATED) as url:
        config = models / "target/config.json"
        return servers.make_table(folder, (plain, url), config)


def test_a_probe_finds_k_and_the_accepted_length(table, folder):
    (none, plain), (three, waves) = read_probe(folder / "runs.jsonl")
    assert (none.server.engine, none.server.drafts) == ("sglang", 0)
    assert (three.server.drafts, three.server.levels) == (3, 3)
    assert servers.accepted(plain) == 1.0
    assert servers.accepted(waves) == pytest.approx(LENGTH, rel=0.1)


def test_the_printed_command_starts_the_server_that_was_advised(table, models, folder):
    """Its K is what the next probe of it finds."""
    accept = f"3:{LENGTH}"
    done = evict("advise", table, "--accept", accept, folder=folder)
    assert done.exit_code == 0, done.output
    words, fields = servers.printed_command(folder, table, "sglang", accept)
    named = {"MODEL": models / "target", "DRAFTER": models / "draft"}
    python, *rest = [str(named.get(word, word)) for word in words]
    log = folder / "advised.log"
    with servers.serving([sys.executable, *rest, *CPU], log, **SIMULATED) as url:
        *_, (found, _) = servers.probe(folder, url)
    assert python == "python"
    assert [found.server.drafts] == fields["1"]["candidate_steps"]


def test_replies_with_the_plug_in_are_those_without_it(models, plain, fitted, folder):
    """Trees are cut to the widths of the metrics, which come every 32 steps."""
    config = models / "target/config.json"
    path = folder / "table.json"
    table_of(fitted, load_model(str(config))).save(path)
    variables = {
        "EVICT_PROFILE_TABLE": str(path),
        "EVICT_PROFILE_CAPTURE_SIZES": ",".join(map(str, WIDTHS)),
    }
    words, log = launch(*drafting(models, 4, 8)), folder / "plug-in.log"
    with servers.serving(words, log, **variables) as url:
        cut = servers.replies(url)
        metrics = servers.get(f"{url}/metrics")
    assert cut == servers.replies(plain)
    assert "evict-profile: on" in log.read_text()
    [width] = [
        float(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith("evict_profile:width")
    ]
    assert WIDTHS[0] <= width <= WIDTHS[-1]

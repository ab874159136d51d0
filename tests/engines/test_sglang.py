"""SGLang's server over HTTP: probed, made a table of, advised, and started again."""

import json
import random
import re
import sys
from itertools import combinations, product

import numpy as np
import pytest
import torch

from evict_profile.config import load_model
from evict_profile.records import replace
from evict_profile.served.probe.record import read_lines
from evict_profile.table import CostTable
from evict_profile.table.document import file_sha256
from tests.command import evict, refused
from tests.engines import servers
from tests.sglang.serving import table_of

pytestmark = servers.needs("sglang")

CPU = (
    "--served-model-name", "tiny", "--dtype", "float32", "--device", "cpu",
    "--attention-backend", "intel_amx", "--sampling-backend", "pytorch",
    "--disable-cuda-graph", "--max-total-tokens", "8192", "--mem-fraction-static",
    "0.2", "--max-running-requests", "8", "--enable-metrics", "--sleep-on-idle",
)  # fmt: skip
WIDTHS = (1, 2, 4, 8)
PROMPT, *_ = servers.PROMPTS
ROUTED = ("--enable-return-routed-experts",)


def launch(*words):
    return [sys.executable, "-m", "sglang.launch_server", *words, *CPU]


def drafting(models, topk, tokens):
    return (
        "--model-path", str(models / "target"), "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(models / "draft"),
        "--speculative-eagle-topk", str(topk), "--speculative-num-steps", "3",
        "--speculative-num-draft-tokens", str(tokens),
    )  # fmt: skip


ENGINE = servers.Engine(
    "sglang",
    launch,
    lambda models: ("--model-path", str(models / "target"), *ROUTED),
    lambda models: (*drafting(models, 1, 4), *ROUTED),
    returns_routes=True,
)


def test_a_probe_finds_k_and_the_accepted_length(table, engine, folder, plain):
    servers.check_probe(engine, folder, plain)


def routed(model, url, prompt):
    """Experts of a reply's tokens that ran, [tokens][layers][k], by transformers."""
    from transformers import Qwen3MoeForCausalLM

    asked, said = servers.token_ids(url, prompt)
    loaded = Qwen3MoeForCausalLM.from_pretrained(str(model), dtype=torch.float32)
    with torch.no_grad():
        ids = torch.tensor([asked + said[:-1]])
        ran = loaded(ids, output_router_logits=True)
    k = loaded.config.num_experts_per_tok
    experts = [each.topk(k).indices[len(asked) :] for each in ran.router_logits]
    return torch.stack(experts, dim=1).tolist()


def union(rows):
    """Distinct experts of tokens, [layers]."""
    layers = zip(*rows, strict=True)
    return [len({expert for own in layer for expert in own}) for layer in layers]


def test_experts_over_http_are_those_that_the_router_chose(
    table, plain, models, folder
):
    """Plain and with EAGLE-3: by layer over windows, and of two requests together."""
    replies = [routed(models / "target", plain, text) for text in servers.texts(0, 4)]
    lines = [*read_lines(folder / servers.ROUTES)]
    assert [line.server.drafts for line in lines[::2]] == [0, 3]
    dice = random.Random(1)
    for found, n in product(lines[1::2], (1, 2, 7, 32)):
        windows = [[own[e - n : e] for e in range(n, len(own) + 1)] for own in replies]
        alone = [union(rows) for own in windows for rows in own]
        layers = [layer[n] for layer in found.layers]
        assert layers == pytest.approx(np.mean(alone, axis=0), abs=0.02)
        both = [
            union(dice.choice(one) + dice.choice(other))
            for one, other in combinations(windows, 2)
            for _ in range(60)
        ]
        assert found.batches[0].union[2 * n] == pytest.approx(np.mean(both), rel=0.05)


def test_a_table_gets_the_activation_of_a_real_engine(table, models, fitted, folder):
    config = models / "target/config.json"
    own, samples = folder / "costs.json", folder / "costs.parquet"
    fitted.frame.to_parquet(samples, index=False)
    costs = table_of(fitted, load_model(str(config)))
    made = replace(costs.provenance, samples_sha256=file_sha256(samples))
    replace(costs, provenance=made).save(own)
    words = ("calibrate", own, servers.ROUTES, "--tables", "routed")
    done = evict(*words, folder=folder)
    assert done.exit_code == 0, done.output
    [path] = (folder / "routed").rglob("*.json")
    *_, found = read_lines(folder / servers.ROUTES)
    curve = CostTable.load(path).activation
    assert curve.workload.startswith("committed tokens, raw")
    assert curve.at(np.array([7.0]), 1) == pytest.approx(found.union[7], abs=1e-3)


def test_the_printed_command_starts_the_server_that_was_advised(
    table, engine, models, folder
):
    """Its K is what the next probe of it finds."""
    words, fields = servers.advised(folder, table, "sglang")
    named = {"MODEL": models / "target", "DRAFTER": models / "draft"}
    words = [str(named.get(word, word)) for word in words]
    assert words[:3] == ["python", "-m", "sglang.launch_server"]
    with engine.serving(words[3:], folder / "advised.log") as url:
        *_, (found, _) = servers.probe(folder, url)
    assert [found.server.drafts] == fields["1"]["candidate_steps"]


def test_a_schedule_drafts_by_batch_as_the_probe_reads(engine, models, folder):
    path = folder / "schedule.json"
    steps = {"1": 3, "2": 1, "4": 0}
    slots = {batch: {"candidate_steps": [k]} for batch, k in steps.items()}
    path.write_text(json.dumps(slots))
    words = ("--speculative-adaptive", "--speculative-adaptive-config", str(path))
    words = (*drafting(models, 1, 4), *words)
    with engine.serving(words, folder / "schedule.log") as url:
        servers.check_schedule(folder, url, {1: 3, 2: 1, 4: 0})


def test_replies_are_those_of_vllm(engine, plain, models):
    servers.check_replies(engine.name, plain, models)


@pytest.fixture(scope="module")
def cutting(engine, models, fitted, folder):
    """A server whose trees are cut, and its log."""
    path, log = folder / "table.json", folder / "plug-in.log"
    table_of(fitted, load_model(str(models / "target/config.json"))).save(path)
    variables = {
        "EVICT_PROFILE_TABLE": str(path),
        "EVICT_PROFILE_CAPTURE_SIZES": ",".join(map(str, WIDTHS)),
    }
    with engine.serving(drafting(models, 4, 8), log, **variables) as url:
        yield url, log


def test_replies_with_the_plug_in_are_those_without_it(cutting, plain, folder):
    """Trees are cut to the widths of the metrics, which come every 32 steps."""
    url, log = cutting
    assert servers.replies(url) == servers.replies(plain)
    words = ("probe", url, "--routes", "--out", servers.ROUTES)
    assert "it drafts trees" in refused(*words, folder=folder)
    assert "evict-profile: on" in log.read_text()
    metrics = servers.get(f"{url}/metrics")
    [width] = re.findall(r"^evict_profile:width\S* (\S+)$", metrics, re.MULTILINE)
    assert WIDTHS[0] <= float(width) < WIDTHS[-1]


def switched(url, value, key="evict_profile"):
    return servers.post(f"{url}/set_internal_state", {"server_args": {key: value}})


def test_the_plug_in_is_switched_off_and_on_without_a_restart(cutting, plain):
    """Replies stay; SGLang refuses what it does not know."""
    url, log = cutting
    wanted = servers.token_ids(plain, PROMPT)
    for value in (0, 1):
        assert switched(url, value) == [True]
        assert servers.token_ids(url, PROMPT) == wanted
    assert switched(url, 1, "evict") == [False]
    found = re.findall(r"evict-profile: (switched .*)", log.read_text())
    assert found == ["switched off: whole trees are verified", "switched on"]

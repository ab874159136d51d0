"""One start of an engine: its prompts, and a real one where SGLang is installed."""

import importlib.util
import json
import sys
from dataclasses import replace

import pytest

from benchmarks.sglang_planted.engine import Start, prompts
from benchmarks.sglang_planted.process import environment_with, run_apart
from benchmarks.sglang_planted.world import PlantedWorld
from benchmarks.sglang_serving import PLUGINS, texts
from evict_profile.records import to_mapping
from tests.sglang.engine import MODELS

SGLANG = importlib.util.find_spec("sglang") is not None
START = Start(
    target=str(MODELS / "target"), draft=str(MODELS / "draft"), dtype="float32",
    speculative=True, width=8, steps=3, topk=4, batches=(1, 3), context=12, tokens=16,
    repeats=1,
)  # fmt: skip


def test_a_prompt_names_its_text():
    made = prompts(START)
    assert [prompt[0] for prompt in made] == [0, 1, 2]
    assert {len(prompt) for prompt in made} == {START.context}
    assert made == prompts(START)


@pytest.mark.skipif(not SGLANG, reason="sglang is not installed here")
@pytest.mark.parametrize("speculative", [False, True])
def test_an_engine_says_the_text(tmp_path, speculative):
    """Plainly in a server for chains, whose contexts are the shortest."""
    chains = replace(START, width=4, topk=1, speculative=False)
    start = START if speculative else chains
    world = PlantedWorld(1024, start.topk)
    plan, result = tmp_path / "plan.json", tmp_path / "result.json"
    plan.write_text(json.dumps(to_mapping(start)))
    words = [sys.executable, "-m", "benchmarks.sglang_planted.engine"]
    environment = environment_with(tmp_path, PLUGINS) | world.as_variable()
    environment.pop("TRITON_INTERPRET", None)
    run_apart([*words, str(plan), str(result)], environment, tmp_path / "log", 300.0)
    runs = json.loads(result.read_text())["runs"]
    expected = texts(start, world)
    assert {(r["repeat"], r["batch"]): r["said"] for r in runs} == expected
    if speculative:
        assert all(run["steps"] < 0.8 * run["tokens"] for run in runs)

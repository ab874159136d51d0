"""What a sweep may ask for."""

import pytest
import yaml

from evict_profile.config import load_sweep
from evict_profile.config.sweep import gather_engine
from tests.config.files import example, failure, names


def test_only_the_sweeps_of_servers_time_whole_forwards():
    whole = {name for name in names("sweeps") if load_sweep(name).whole}
    assert whole == {"sglang", "sglang-tiny"}
    assert {load_sweep(name).runner for name in whole} == {"sglang_verify"}


def test_a_runner_without_options_takes_none(tmp_path):
    plan = example("sweeps") | {"runner": "torch_moe"}
    message = failure("sweeps", tmp_path, plan)
    assert "the runner 'torch_moe' has no options; remove 'engine:'" in message


@pytest.fixture
def plan_of_a_script(tmp_path):
    """A plan whose runner is a script with a required option."""
    (tmp_path / "runner.py").touch()
    (tmp_path / "options.py").write_text(
        "from evict_profile.config.sweep import EngineOptions\n\n\n"
        "class Options(EngineOptions, frozen=True):\n"
        "    weights: str\n    threads: int = 1\n"
    )
    return example("sweeps") | {"runner": str(tmp_path / "runner.py")}


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({}, "engine: key 'weights' is missing; add it"),
        (
            {"weights": "here", "gpu": 2},
            "engine: unknown key 'gpu'; remove it, or write one of weights, threads",
        ),
    ],
)
def test_a_script_states_its_options_beside_it(
    tmp_path, plan_of_a_script, engine, says
):
    plan = plan_of_a_script | {"engine": engine}
    assert says in failure("sweeps", tmp_path, plan)


def test_options_that_a_plan_leaves_out_are_in_its_sweep(tmp_path, plan_of_a_script):
    path = tmp_path / "plan.yaml"
    plan = plan_of_a_script | {"engine": {"weights": "here"}}
    path.write_text(yaml.safe_dump(plan))
    assert load_sweep(str(path)).engine == {"weights": "here", "threads": 1}


@pytest.mark.parametrize(
    ("former", "new"),
    [
        ({"sglang": {"topk": 4}}, "engine:"),
        ({"gpu": "h200-sxm"}, "engine: {gpu: ...}"),
        ({"runner": "llama_cpp", "llama": {"threads": 8}}, "engine:"),
    ],
)
def test_a_section_of_an_earlier_version_is_shown_the_new_key(tmp_path, former, new):
    message = failure("sweeps", tmp_path, example("sweeps") | former)
    assert f"write '{new}' in place of '{[*former][-1]}:'" in message


@pytest.mark.parametrize(
    ("runner", "engine"),
    [
        ("torch_moe", {}),
        ("roofline", {"gpu": "h200-sxm"}),
        ("sglang_verify", {"topk": 8}),
        ("mine.py", {"threads": 2}),
    ],
)
def test_a_saved_sweep_keeps_the_options_of_its_runner(runner, engine):
    sweep = {"gpu": "h200-sxm", "sglang": {"topk": 8}, "runner": runner}
    sweep["options"] = {"threads": 2} if runner == "mine.py" else {}
    gather_engine(sweep)
    assert sweep == {"runner": runner, "engine": engine}
    gather_engine(sweep)
    assert sweep["engine"] == engine


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("grid", {"width": [0]}, "grid.width[0]: Expected `int` >= 1 (got 0)"),
        ("grid", {"batch": []}, "grid.batch: Expected"),
        ("grid", {"union": 1}, "grid.union: Expected `int` >= 2 (got 1)"),
        ("grid", {"width": [1, 2, 2]}, "width holds a value twice"),
        ("grid", {"max_tokens": 0}, "max_tokens 0 leaves no cell"),
        ("engine", {"modle": "x"}, "engine: unknown key 'modle'; remove it, or write"),
        ("engine", {"topk": 0}, "engine: topk: Expected `int` >= 1 (got 0)"),
        ("engine", {"topk": 1, "steps": 99}, "topk 1 drafts chains of 100 tokens"),
        ("stop", {"max_samples": 5}, "min_samples 6 exceeds max_samples 5"),
        ("", {"seed": -1}, "seed: Expected `int` >= 0 (got -1)"),
        ("", {"seed": -1}, "seed: Expected `int` >= 0 (got -1)"),
        ("stop", {"min_samples": 2}, "stop.min_samples: Expected `int` >= 6 (got 2)"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, section, changes, message):
    content = example("sweeps")
    content |= {section: content.get(section, {}) | changes} if section else changes
    assert message in failure("sweeps", tmp_path, content)


def test_the_first_sweep_is_in_float32_on_the_cpu():
    """There arithmetic in bfloat16 hides what an expert costs: it was refused."""
    spec = load_sweep("tiny")
    assert (spec.device, spec.dtype) == ("cpu", "float32")

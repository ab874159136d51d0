"""What a sweep may ask for."""

import pytest

from evict_profile.config import load_sweep
from tests.config.files import example, failure, names


def test_only_the_sweeps_of_servers_time_whole_forwards():
    whole = {name for name in names("sweeps") if load_sweep(name).whole}
    assert whole == {"sglang", "sglang-tiny"}
    assert {load_sweep(name).runner for name in whole} == {"sglang_verify"}


def test_options_are_of_a_runner_of_ones_own(tmp_path):
    options = {"options": {"weights": "here"}}
    message = failure("sweeps", tmp_path, example("sweeps") | options)
    assert "for a runner of your own, and 'sglang_verify' reads none" in message


def test_a_plan_for_llama_cpp_is_shown_the_script(tmp_path):
    plan = example("sweeps") | {"runner": "llama_cpp", "llama": {"threads": 8}}
    message = failure("sweeps", tmp_path, plan)
    assert "write 'runner: examples/llama_cpp/runner.py'" in message
    assert "'options:' in place of 'llama:'" in message


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("grid", {"width": [0]}, "grid.width[0]: Expected `int` >= 1 (got 0)"),
        ("grid", {"batch": []}, "grid.batch: Expected"),
        ("grid", {"union": 1}, "grid.union: Expected `int` >= 2 (got 1)"),
        ("grid", {"width": [1, 2, 2]}, "width holds a value twice"),
        ("grid", {"max_tokens": 0}, "max_tokens 0 leaves no cell"),
        ("sglang", {"modle": "x"}, "unknown key 'sglang.modle'"),
        ("sglang", {"topk": 0}, "sglang.topk: Expected `int` >= 1 (got 0)"),
        ("sglang", {"topk": 1, "steps": 99}, "topk 1 drafts chains of 100 tokens"),
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

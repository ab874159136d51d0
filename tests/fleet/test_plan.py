"""What is frozen is what would be measured, and what changed in it is named."""

from pathlib import Path

import pytest
import yaml

from evict_profile.errors import ConfigError
from evict_profile.fleet.plan import make_plan, runner_sha256
from evict_profile.records import parse, to_mapping
from tests.fleet.conftest import FLEET, SHORT
from tests.sweep.conftest import SCRIPTED

WIDE = {"models": ["tiny", "tiny-qwen3"], "dtypes": ["float32", "bfloat16"]}


def test_pairs_are_the_product_less_what_is_excluded(fleet_of):
    rule = {"model": "tiny-qwen3", "dtype": "bfloat16"}
    plan = make_plan(fleet_of(**WIDE, exclude=[rule]))
    assert [pair.name for pair in plan.pairs] == [
        "tiny_short_float32_scripted_cpu",
        "tiny_short_bfloat16_scripted_cpu",
        "tiny-qwen3_short_float32_scripted_cpu",
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"exclude": [{"model": "tinny"}]}, "leaves nothing out"),
        ({"exclude": [{"model": "tiny"}]}, "no pair"),
        ({"models": ["huge"]}, "no file 'huge'"),
        ({"runners": {"x": {"runner": "vroom"}}}, "'vroom' is unknown.*or exclude"),
    ],
)
def test_a_fleet_without_a_pair_is_refused(fleet_of, changes, says):
    with pytest.raises(ConfigError, match=says):
        make_plan(fleet_of(**changes))


def test_a_pair_that_cannot_be_measured_is_named(fleet_of):
    """At planning, not after hours."""
    spec = fleet_of()
    wrong = {**SHORT, "grid": {**SHORT["grid"], "union": [4, 64]}}
    Path("short.yaml").write_text(yaml.safe_dump(wrong))
    with pytest.raises(ConfigError, match=r"'model': 'tiny'.*grid.union 64"):
        make_plan(spec)


def test_axes_reach_the_sweep(fleet_of):
    engine = {"runner": "sglang_verify", "whole": True}
    spec = fleet_of(runners={"sglang": engine}, devices={"h100": {"gpus": 1.0}})
    [pair] = make_plan(spec).pairs
    sweep = pair.sweep
    assert (sweep.runner, sweep.whole) == ("sglang_verify", True)
    assert (sweep.dtype, sweep.device) == ("bfloat16", "cuda")


def test_a_plan_is_read_as_it_was_written(fleet_of):
    plan = make_plan(fleet_of(**WIDE, shards=2))
    again = parse(type(plan), to_mapping(plan), "there")
    assert again == plan
    assert again.sha256 == plan.sha256


def test_the_same_fleet_is_the_same_plan_whatever_it_may_spend(fleet_of):
    plan = make_plan(fleet_of())
    richer = make_plan(fleet_of(budget={"tries": 9}))
    assert richer.sha256 == plan.sha256
    assert not richer.changes(plan)


def test_each_change_is_named(fleet_of):
    plan = make_plan(fleet_of())
    Path("short.yaml").write_text(
        yaml.safe_dump({**SHORT, "stop": {**SHORT["stop"], "max_samples": 9}})
    )
    changed = make_plan(fleet_of(shards=2))
    pair = "pairs.tiny_short_bfloat16_scripted_cpu"
    assert changed.changes(plan) == [
        f"{pair}.shards: 2 here, 1 there",
        f"{pair}.sweep.stop.max_samples: 9 here, 7 there",
    ]
    added = make_plan(fleet_of(**WIDE)).changes(plan)
    assert any("tiny-qwen3" in each and "absent there" in each for each in added)


def test_an_edited_runner_is_another_plan(fleet_of):
    Path("own.py").write_text(SCRIPTED.read_text())
    spec = fleet_of(runners={"own": {"runner": "own.py"}})
    plan = make_plan(spec)
    assert Path(plan.pairs[0].engine.runner).is_absolute()
    with Path("own.py").open("a") as source:
        source.write("# edited\n")
    [change] = make_plan(spec).changes(plan)
    assert "runner_sha256" in change


def test_each_runner_has_a_digest_of_its_own():
    names = ("torch_moe", "roofline", str(SCRIPTED))
    assert len({runner_sha256(name) for name in names}) == len(names)


def test_the_estimate_follows_samples_bytes_and_bandwidth(fleet_of):
    [pair] = make_plan(fleet_of()).pairs
    low, high = pair.minutes
    assert 0.0 < low < high
    slow = make_plan(fleet_of(devices={"cpu": {"bandwidth_gbps": 0.1}})).minutes
    assert slow[0] > low
    assert FLEET["name"] == make_plan(fleet_of()).fleet

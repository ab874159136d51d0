"""What a fleet measures; what cannot be is refused, with the field that is wrong."""

from pathlib import Path

import pytest
import yaml

from evict_profile.errors import ConfigError
from evict_profile.fleet.cluster import task_options
from evict_profile.fleet.run import FleetFolder
from evict_profile.fleet.spec import Device, Engine, jobs_of
from tests.fleet.conftest import NAME, SHORT

WIDE = {"models": ["tiny", "tiny-qwen3"], "dtypes": ["float32", "bfloat16"]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"models": []}, "name each"),
        ({"exclude": [{"gpu": "H100"}]}, "exclude names some of model, sweep"),
        ({"exclude": [{}]}, "exclude names some of"),
        ({"tries": 0}, "tries: Expected"),
        ({"minutes": 0.0}, "minutes: Expected"),
        ({"dtypes": ["int4"]}, "dtypes"),
        ({"devices": {"cpu": {"gpus": -1.0}}}, "gpus: Expected"),
        ({"devices": {"cpu": {"resources": {"machine": 0.0}}}}, "resources.*Expected"),
        ({"device": {}}, "unknown key 'device'"),
    ],
)
def test_what_cannot_be_is_refused(fleet_of, wrong, says):
    with pytest.raises(ConfigError, match=f"fleet.yaml: .*{says}"):
        fleet_of(**wrong)


def test_pairs_are_the_product_less_what_is_excluded(fleet_of):
    rule = {"model": "tiny-qwen3", "dtype": "bfloat16"}
    names = [job.name for job in jobs_of(fleet_of(**WIDE, exclude=[rule]))]
    float32 = "{}_short_float32_scripted_cpu"
    assert names == [float32.format("tiny"), NAME, float32.format("tiny-qwen3")]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"exclude": [{"model": "tinny"}]}, "leaves nothing out"),
        ({"exclude": [{"model": "tiny"}]}, "no job"),
        ({"models": ["huge"]}, "no file 'huge'"),
        ({"sweeps": ["short.yaml"], "devices": {"a b": {}, "a-b": {}}}, "share a name"),
    ],
)
def test_a_fleet_without_pairs_is_refused(fleet_of, changes, says):
    with pytest.raises(ConfigError, match=says):
        jobs_of(fleet_of(**changes))


def test_axes_reach_the_sweep(fleet_of):
    engine = {"runner": "sglang_verify", "whole": True}
    fleet = fleet_of(runners={"sglang": engine}, devices={"h100": {"gpus": 1.0}})
    [job] = jobs_of(fleet)
    assert (job.sweep.runner, job.sweep.whole) == ("sglang_verify", True)
    assert (job.sweep.dtype, job.sweep.device) == ("bfloat16", "cuda")


@pytest.mark.parametrize(
    ("union", "runner", "says"),
    [([4, 64], "torch_moe", "grid.union 64"), (4, "vroom", "'vroom' is unknown")],
)
def test_a_job_that_cannot_be_measured_is_refused_at_planning(
    fleet_of, union, runner, says
):
    fleet = fleet_of(runners={"scripted": {"runner": runner}})
    wrong = {**SHORT, "grid": {**SHORT["grid"], "union": union}}
    Path("short.yaml").write_text(yaml.safe_dump(wrong))
    with pytest.raises(ConfigError, match=f"{NAME}: .*{says}.*exclude it"):
        FleetFolder(Path("fleet")).write_plan(jobs_of(fleet))
    assert not Path("fleet").exists()


def test_options_of_another_runner_are_refused_at_planning(fleet_of):
    fleet = fleet_of(runners={"scripted": {"runner": "torch_moe"}})
    own = {"runner": "roofline", "engine": {"gpu": "h200-sxm"}}
    Path("short.yaml").write_text(yaml.safe_dump({**SHORT, **own}))
    with pytest.raises(ConfigError, match=f"{NAME}: .*'torch_moe' has no options"):
        FleetFolder(Path("fleet")).write_plan(jobs_of(fleet))


def test_task_options_are_all_that_a_device_and_an_engine_ask():
    gpus = Device(gpus=2.0, accelerator="H100")
    own = {"num_gpus": 2.0, "accelerator_type": "H100", "resources": {"sglang": 0.001}}
    assert task_options(gpus, Engine("x", resource="sglang")) == own | {"num_cpus": 1.0}
    assert task_options(Device(), Engine("x"))["resources"] == {"machine": 1.0}
    assert task_options(Device(resources={}), Engine("x"))["resources"] == {}

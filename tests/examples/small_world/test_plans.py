"""A plan names each reply once, and is refused where the world cannot serve it."""

from types import SimpleNamespace

import pytest

from evict_profile.errors import ConfigError
from evict_profile.traces import Reply, TraceInfo
from evict_profile.traces.schema import COLUMNS
from examples.small_world.plans import TracePlan


def world(**available):
    about = TraceInfo("small", experts=16, top_k=2)
    return SimpleNamespace(available=available, about=about)


def test_every_workload_comes_before_the_next_prompt():
    """Without noise all seeds give one reply."""
    plan = TracePlan(
        prompts=2, seeds=2, temperatures=(0.0, 1.0), workloads=("code", "prose")
    )
    assert list(plan.replies()) == [
        Reply(workload, prompt, seed, temperature)
        for prompt in range(2)
        for temperature, seed in ((0.0, 0), (1.0, 0), (1.0, 1))
        for workload in ("code", "prose")
    ]


def test_all_workloads_unless_some_are_named():
    both, named = world(prose=30, code=30), TracePlan(workloads=("code",))
    assert TracePlan().within(both).workloads == ("prose", "code")
    assert named.within(both).workloads == ("code",)


def test_what_the_world_lacks_is_refused():
    short = world(code=30, prose=9)
    with pytest.raises(ConfigError, match="--workload chat: small has code, prose"):
        TracePlan(workloads=("chat",)).within(short)
    with pytest.raises(ConfigError, match=r"--prompts 24: .* prose of small has 9"):
        TracePlan().within(short)


def test_trees_that_a_trace_can_number_are_recorded():
    assert COLUMNS.field("parent").type.value_type == "int16"
    assert TracePlan(depth=512, nodes=64).nodes == 64
    assert TracePlan(nodes=10**9).topk == 8
    with pytest.raises(ConfigError, match=r"up to 32776 nodes, .* 32768 at most"):
        TracePlan(depth=513, nodes=64)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperatures": (-0.5,)}, "--temperature -0.5: must be 0 or more"),
        ({"temperatures": (float("nan"),)}, "--temperature nan: must be 0 or more"),
        ({"depth": 1000}, "--depth 1000, --topk 8, --nodes 60: .* up to 60000 nodes"),
    ],
)
def test_options_that_cannot_be(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        TracePlan(**options)

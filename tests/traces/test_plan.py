"""A plan names each reply once; what the runner answers becomes rows, or is refused."""

import pytest

from evict_profile.errors import ConfigError, RunnerError
from evict_profile.traces import Reply
from evict_profile.traces.record import TracePlan, trace_rows
from evict_profile.traces.schema import COLUMNS
from tests.traces.synthetic import ABOUT, Plan, reply_steps

KEY = Reply("code", 2, 0, 0.0)
STEP_FIELDS = COLUMNS.names[4:]


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
    available = {"prose": 30, "code": 30}
    named = TracePlan(workloads=("code",))
    assert TracePlan().within(available, ABOUT).workloads == ("prose", "code")
    assert named.within(available, ABOUT).workloads == ("code",)


def test_what_the_world_lacks_is_refused():
    available = {"code": 30, "prose": 9}
    with pytest.raises(ConfigError, match="--workload chat: synthetic has code, prose"):
        TracePlan(workloads=("chat",)).within(available, ABOUT)
    with pytest.raises(ConfigError, match=r"--prompts 24: .* prose of synthetic has 9"):
        TracePlan().within(available, ABOUT)


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


def test_one_row_a_step_with_all_columns():
    rows = trace_rows(KEY, reply_steps(Plan(tokens=5), KEY))
    assert rows.schema == COLUMNS
    assert rows.column("position").to_pylist() == [0, 1, 2, 3, 4]
    assert set(rows.column("prompt").to_pylist()) == {2}


@pytest.mark.parametrize("name", STEP_FIELDS)
def test_a_field_that_lacks_is_named(name):
    (step,) = reply_steps(Plan(tokens=1), KEY)
    del step[name]
    with pytest.raises(RunnerError, match=f"a step without {name}; a step needs pos"):
        trace_rows(KEY, [step])


@pytest.mark.parametrize(
    "change",
    [{"routes": "not base64!"}, {"routes": 3}, {"parent": ["root"]}, {"parent": 7}],
)
def test_a_field_of_another_type_is_refused(change):
    (step,) = reply_steps(Plan(tokens=1), KEY)
    with pytest.raises(RunnerError, match="answered a step that is none"):
        trace_rows(KEY, [{**step, **change}])

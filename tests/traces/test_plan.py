"""A plan names each reply once, and fits its world or is refused."""

import pytest

from evict_profile.errors import ConfigError
from evict_profile.traces.plan import Plan, ReplyKey
from evict_profile.traces.schema import COLUMNS
from tests.traces.synthetic import ABOUT


def test_seeds_are_one_at_temperature_zero() -> None:
    """Without noise all seeds say the same."""
    plan = Plan(prompts=1, seeds=3, temperatures=(0.0, 1.0), workloads=("code",))
    told = [(key.temperature, key.seed) for key in plan.replies()]
    assert told == [(0.0, 0), (1.0, 0), (1.0, 1), (1.0, 2)]


def test_every_workload_comes_before_the_next_prompt() -> None:
    """A recording cut short holds some of each."""
    plan = Plan(prompts=2, workloads=("code", "prose"))
    assert list(plan.replies()) == [
        ReplyKey("code", 0, 0, 0.0),
        ReplyKey("prose", 0, 0, 0.0),
        ReplyKey("code", 1, 0, 0.0),
        ReplyKey("prose", 1, 0, 0.0),
    ]


def test_all_workloads_unless_some_are_named() -> None:
    """In the order of the world, or as named."""
    available = {"prose": 30, "code": 30}
    assert Plan().within(available, ABOUT).workloads == ("prose", "code")
    assert Plan(workloads=("code",)).within(available, ABOUT).workloads == ("code",)


def test_a_workload_that_the_world_lacks_is_refused() -> None:
    """Those that it has are named."""
    with pytest.raises(ConfigError, match="--workload chat: synthetic has code, prose"):
        Plan(workloads=("chat",)).within({"code": 30, "prose": 30}, ABOUT)


def test_too_many_prompts_are_refused() -> None:
    """And how many there are is said."""
    with pytest.raises(ConfigError, match=r"--prompts 24: .* prose of synthetic has 9"):
        Plan().within({"code": 30, "prose": 9}, ABOUT)


def test_trees_that_a_trace_can_number_are_recorded() -> None:
    """As many as 16 bits tell apart; no tree holds more than was drafted."""
    assert COLUMNS.field("parent").type.value_type == "int16"
    assert Plan(depth=512, nodes=64).nodes == 64
    assert Plan(nodes=10**9).fan == 8
    with pytest.raises(ConfigError, match=r"up to 32776 nodes, .* 32768 at most"):
        Plan(depth=513, nodes=64)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prompts": 0}, "--prompts 0: must be at least 1"),
        ({"depth": -1}, "--depth -1: must be at least 1"),
        ({"batches": (1, 0)}, "--batch 0: must be at least 1"),
        ({"temperatures": (-0.5,)}, "--temperature -0.5: must be 0 or more"),
        ({"temperatures": (float("nan"),)}, "--temperature nan: must be 0 or more"),
        ({"batches": (4, 4)}, "--batch has a value twice"),
        ({"workloads": ("code", "code")}, "--workload has a value twice"),
        ({"depth": 1000}, "--depth 1000, --fan 8, --nodes 60: .* up to 60000 nodes"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], sentence: str) -> None:
    """The option is named."""
    with pytest.raises(ConfigError, match=sentence):
        Plan(**options)  # type: ignore[arg-type]

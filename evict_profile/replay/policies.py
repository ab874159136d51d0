"""Policies: how deep to draft, and which nodes to verify.

A replay and an engine run the same objects. A policy sees draft trees, never the
target's answers, and may learn from its steps; so every run makes a fresh one.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

from numpy.typing import NDArray

from evict_profile.acceptance import ConditionalAcceptance
from evict_profile.runtime import Calibration, CostTable, DecodingStep, Truncator
from evict_profile.stats import Bools, Ints

AR = "plain decoding"
FULL_TREE = "full tree"
BEST_WIDTH = "best fixed width"
BEST_PAIR = "best fixed depth and width"
PAIR_CONDITIONAL = "best fixed pair, conditional"
SCHEDULE = "schedule by batch"
ONE_SETTING = (BEST_WIDTH, BEST_PAIR, PAIR_CONDITIONAL)
HINDSIGHT = (*ONE_SETTING, SCHEDULE)
"""Policies set to what was fastest on the replayed trace, the simplest first."""
GUIDED = RATIO, RATE, RATE_DEPTH = ("ratio", "rate", "rate and depth")
"""Policies that read a table, the simplest first: EVICT's objective; the runtime's; the
runtime's with a choice of depth."""
ORACLE = "oracle"


class PolicyStep(Protocol):
    def deeper(self) -> bool:
        """Whether to draft another level; asked once before each."""

    def extend(self, prob: NDArray[Any], parent: Ints | None) -> None:
        """Add the level that was drafted.

        `prob` [B, P, K] is of children given their parents, siblings by rank; 0 is
        padding, and nodes not among the N best so far. `parent` [B, P] are places in
        the level before; None at the first.
        """

    def keep(self) -> Bools:
        """Nodes verified, at most N a request, closed under ancestors: bool [B, M]."""


class Policy(Protocol):
    @property
    def name(self) -> str:
        """What the policy is called in a report."""

    @property
    def depth(self) -> int:
        """Most levels to draft; 0 is plain decoding."""

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        """The coming step; a request verifies at most `nodes`, its root excluded."""

    def observe(self, committed: int, step_us: float) -> None:
        """Learn from a step: tokens committed over the batch, and its whole time."""


MakePolicy = Callable[[], Policy]


class TruncatedStep:
    def __init__(self, step: DecodingStep, chooses_depth: bool = True) -> None:
        self._step, self._chooses_depth = step, chooses_depth
        self.extend = step.extend

    def deeper(self) -> bool:
        return not self._chooses_depth or self._step.deeper()

    def keep(self) -> Bools:
        """The plan's nodes, less padding of a captured size."""
        return self._step.plan().host_keep & (self._step.scores > 0.0)


@dataclass(frozen=True)
class Fixed:
    """The best `width` - 1 nodes a request, by path probability or conditionally."""

    name: str = field(compare=False)
    depth: int
    width: int
    conditional: ConditionalAcceptance | None = None

    @property
    def setting(self) -> str:
        return f"{self.width} tokens at depth {self.depth}"

    def served_by(self, table: CostTable, topk: int, nodes: int) -> str:
        """Environment and flags by which a server sets it, of trees as traced.

        A table of vLLM or TensorRT-LLM has its own, of chains, or none; any other has
        SGLang's. The plug-in cuts trees of `nodes` by conditional acceptance.
        """
        engine, environment, width = table.key.engine, "", self.width
        if engine.startswith(("vllm", "trtllm")):
            chain = topk == 1 and width == self.depth + 1 and not self.conditional
            config = shlex.quote(json.dumps({"num_speculative_tokens": self.depth}))
            known = chain and engine.startswith("vllm")
            return f"--speculative-config {config}" * known
        if self.conditional:
            own = shlex.quote(str(table.path))
            environment = f"EVICT_PROFILE_TABLE={own} EVICT_PROFILE_WIDTH={width} "
            width = nodes + 1
        return (
            f"{environment}--speculative-num-steps {self.depth} "
            f"--speculative-eagle-topk {topk} --speculative-num-draft-tokens {width}"
        )

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        return TruncatedStep(self._truncator.begin(batch, context, nodes))

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""

    @cached_property
    def _truncator(self) -> Truncator:
        return Truncator(
            drafts="topk",
            acceptance="target-only",
            objective="fixed",
            width=self.width,
            depth=self.depth,
            calibration=Calibration.by(self.conditional),
        )


def plain_decoding() -> Fixed:
    return Fixed(AR, 0, 1)


def full_tree(nodes: int, depth: int) -> Fixed:
    return Fixed(FULL_TREE, depth, nodes + 1)


@dataclass(frozen=True)
class Schedule:
    """A setting for each batch of a traffic."""

    settings: Mapping[int, Fixed]
    name: str = SCHEDULE

    @property
    def setting(self) -> str:
        return "; ".join(
            f"batch {batch}: {fixed.setting if fixed.depth else AR}"
            + (", conditional" if fixed.conditional else "")
            for batch, fixed in self.settings.items()
        )


class Guided:
    """A truncator that plans from a cost table, clamped; `name` is one of `GUIDED`."""

    def __init__(self, name: str, depth: int, table: CostTable) -> None:
        self.name, self.depth = name, depth
        self._step: DecodingStep | None = None
        self._truncator = Truncator(
            table,
            drafts="topk",
            acceptance="target-only",
            objective="ratio" if name == RATIO else "rate",
            outside="clamp",
        )

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        self._step = self._truncator.begin(batch, context, nodes)
        return TruncatedStep(self._step, self.name == RATE_DEPTH)

    def observe(self, committed: int, step_us: float) -> None:
        assert self._step is not None, "a step is begun before it is observed"
        self._step.observe(committed, step_us)


def table_policies(table: CostTable, depth: int) -> Mapping[str, MakePolicy]:
    """Makers of `GUIDED` by name; `RATE_DEPTH` needs a table of ranks and clocks."""
    has_depth = table.acceptance and table.acceptance.per_rank and table.drafting
    names = GUIDED if has_depth else (RATIO, RATE)
    return {name: partial(Guided, name, depth, table) for name in names}

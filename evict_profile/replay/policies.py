"""Policies: how deep to draft, and which nodes to verify.

A replay and an engine run the very same objects, so a replay's result is about what a
server would run. A policy sees a batch of draft trees, never what the target makes of
them. It may learn from what its steps committed and took, so every run needs a fresh
one, of a `MakePolicy`.

`Fixed` and `Threshold` read no cost table and learn nothing. `Guided` drives the
truncator of `evict_profile.runtime` with all that its table holds of acceptance.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from evict_profile.runtime import Calibration, CostTable, DecodingStep, Truncator
from evict_profile.runtime.scoring import GrowingTrees
from evict_profile.stats import Bools, Ints
from evict_profile.table import ConditionalAcceptance

AR = "plain decoding"
FULL_TREE = "full tree"
BEST_WIDTH = "best fixed width"
BEST_PAIR = "best fixed depth and width"
PAIR_CONDITIONAL = "best fixed pair, conditional"
THRESHOLD = "best threshold"
HINDSIGHT = (BEST_WIDTH, BEST_PAIR, PAIR_CONDITIONAL, THRESHOLD)
"""Those set to what was fastest on the trace that is replayed, the simplest first."""
GUIDED = RATIO, RATE, RATE_DEPTH = ("ratio", "rate", "rate and depth")
"""Those that read a table, the simplest first: EVICT's objective; the runtime's; that,
with the choice before each level whether to draft it."""
ORACLE = "oracle"


class PolicyStep(Protocol):
    """One step of a batch, as a policy decides it."""

    def deeper(self) -> bool:
        """Whether to draft another level; asked once before each."""

    def extend(self, prob: NDArray[Any], parent: Ints | None) -> None:
        """Show the level that was drafted.

        `prob` [B, P, K] is of children given their parents, siblings by rank; 0 is
        padding, and what is not among the N best drafted so far. `parent` [B, P] are
        places in the level before; None at the first.
        """

    def keep(self) -> Bools:
        """Which nodes are verified, closed under ancestors, and no padding.

        bool [B, M], in the order in which they were shown; at most N of a request.
        """


class Policy(Protocol):
    """What a decoding engine asks in every step."""

    @property
    def name(self) -> str:
        """What the policy is called in a report."""

    @property
    def depth(self) -> int:
        """Most levels to draft; 0 is plain decoding."""

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        """The coming step, at the batch's mean context.

        `nodes` is N, the most that a request can verify, its root excluded.
        """

    def observe(self, committed: int, step_us: float) -> None:
        """How the step went: tokens committed over the batch, and its whole time."""


MakePolicy = Callable[[], Policy]


class TruncatedStep:
    """A step that a truncator decides, to a depth of its own or to all levels."""

    def __init__(self, step: DecodingStep, chooses_depth: bool = True) -> None:
        self._step, self._chooses_depth = step, chooses_depth
        self.extend = step.extend

    def deeper(self) -> bool:
        """Whether the truncator expects another level to pay."""
        return not self._chooses_depth or self._step.deeper()

    def keep(self) -> Bools:
        """The plan's nodes, less padding that fills a tier."""
        kept: Bools = self._step.plan().keep.numpy()
        return kept & (self._step.scores > 0.0)

    def observe(self, committed: int, step_us: float) -> None:
        """Passed to the truncator."""
        self._step.observe(committed, step_us)


@dataclass(frozen=True)
class Fixed:
    """The best `width` - 1 nodes of every request.

    The best by path probability, or by conditional acceptance.
    """

    name: str = field(compare=False)
    depth: int
    width: int
    conditional: ConditionalAcceptance | None = None

    @property
    def setting(self) -> str:
        """Depth and width."""
        return f"{self.width} tokens at depth {self.depth}"

    def served_by(self, table: Path, topk: int, nodes: int) -> str:
        """Environment and flags by which SGLang serves it, of trees as traced.

        The plug-in cuts trees of `nodes` by the table's conditional acceptance.
        """
        environment, width = "", self.width
        if self.conditional:
            own = shlex.quote(str(table))
            environment = f"EVICT_PROFILE_TABLE={own} EVICT_PROFILE_WIDTH={width} "
            width = nodes + 1
        return (
            f"{environment}--speculative-num-steps {self.depth} "
            f"--speculative-eagle-topk {topk} --speculative-num-draft-tokens {width}"
        )

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        """As the runtime's fixed objective decides it."""
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
    """A width of one at no depth: nothing is drafted."""
    return Fixed(AR, 0, 1)


def full_tree(nodes: int, depth: int) -> Fixed:
    """Everything that is drafted, at most so many nodes."""
    return Fixed(FULL_TREE, depth, nodes + 1)


@dataclass(frozen=True)
class Threshold:
    """Nodes whose path probability is `least` (above 0) or more."""

    name: str = field(compare=False)
    depth: int
    least: float

    @property
    def setting(self) -> str:
        """The least path probability."""
        return f"{self.least:g}"

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        """See `ThresholdStep`."""
        return ThresholdStep(batch, self.least)

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


class ThresholdStep:
    """One step of a threshold; a child's path probability is its parent's at most."""

    def __init__(self, batch: int, least: float) -> None:
        self._trees, self._least = GrowingTrees(batch), least
        self.extend = self._trees.grow

    def deeper(self) -> bool:
        """While a node of the last level could have a child that is kept."""
        last = self._trees.last_level
        return not self._trees.levels or bool((last >= self._least).any())

    def keep(self) -> Bools:
        """Closed, because no child scores above its parent."""
        return self._trees.scores >= self._least


class Guided:
    """A truncator that plans from a cost table; `name` is one of `GUIDED`.

    What lies outside the table is evaluated at its edge: a replay lists that among its
    caveats, and an engine checks before it starts.
    """

    def __init__(self, name: str, depth: int, table: CostTable) -> None:
        self.name, self.depth = name, depth
        self._step: TruncatedStep | None = None
        self._truncator = Truncator(
            table,
            drafts="topk",
            acceptance="target-only",
            objective="ratio" if name == RATIO else "rate",
            outside="clamp",
        )

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        """A step of the truncator."""
        step = self._truncator.begin(batch, context, nodes)
        self._step = TruncatedStep(step, self.name == RATE_DEPTH)
        return self._step

    def observe(self, committed: int, step_us: float) -> None:
        """Passed to the truncator."""
        assert self._step is not None, "a step is begun before it is observed"
        self._step.observe(committed, step_us)


def table_policies(table: CostTable, depth: int) -> Mapping[str, MakePolicy]:
    """Makers of the policies that read a table, by name, to a depth at the most.

    Depth is chosen by what the next level would bring and take, so a table without
    ranks or clocks has no such policy.
    """
    has_depth = table.acceptance and table.acceptance.per_rank and table.drafting
    names = GUIDED if has_depth else (RATIO, RATE)
    return {name: partial(Guided, name, depth, table) for name in names}

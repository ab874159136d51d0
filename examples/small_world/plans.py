"""What a recording asks for: traces of replies, or replies under expert budgets.

In a trace every tree is verified whole, and one stands at every position, whatever was
committed there: a trace of cut trees could not tell a good cut from a lossy one.

Of budgets every prompt is done twice under every setting: decoded, which shows what a
step takes and commits, and with held-out text given, which is the same for all and
shows what a budget costs in quality.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import pyarrow as pa

from evict_profile.errors import ConfigError
from evict_profile.traces.schema import COLUMNS, SCHEMA
from evict_profile.traces.trace import Reply
from examples.small_world.engine.budget_rivals import RIVALS
from examples.small_world.engine.budgeted import BudgetedReply, budgeted_steps
from examples.small_world.engine.budgets import NONE, RULES
from examples.small_world.engine.session import TraceSession
from examples.small_world.engine.tree import TreeShape
from runners.protocol import Message

MAX_NODES = 1 << 15
"""Of a recorded tree: nodes name their parents by 16-bit integers (`COLUMNS`)."""

BUDGET_SCHEMA = "evict-budgets/3"
BUDGET_COLUMNS = pa.schema(
    [
        ("rule", pa.string()),
        ("budget", pa.int64()),
        ("workload", pa.string()),
        ("prompt", pa.int64()),
        ("given", pa.bool_()),
        ("position", pa.int64()),
        ("context", pa.int64()),
        ("verified", pa.int64()),
        ("union", pa.float64()),
        ("committed", pa.int64()),
        ("routing_us", pa.float64()),
        ("kl", pa.float64()),
        ("agrees", pa.int64()),
        ("excess_loss", pa.float64()),
    ]
)
"""`verified` tokens with the root, distinct experts (`union`, mean over layers), tokens
`committed`, the time of routing beyond the model's own; sums over committed tokens of
KL in nats (`kl`), of the same likeliest token (`agrees`), and of the nats that the
token itself loses (`excess_loss`)."""


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """What both ask for.

    Attributes:
        workloads: all that the world has text of, if empty.
        depth, topk, nodes: levels of a tree, nodes expanded a level, nodes verified.
        batches: batch sizes whose whole steps are timed.
    """

    schema: ClassVar[str]
    columns: ClassVar[pa.Schema]

    prompts: int = 24
    tokens: int = 64
    workloads: tuple[str, ...] = ()
    depth: int = 5
    topk: int = 8
    nodes: int = 60
    batches: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 128

    @property
    def tree(self) -> TreeShape:
        return TreeShape(self.depth, self.topk, self.nodes)

    @abstractmethod
    def replies(self) -> Iterator[Any]:
        """What is recorded, in order."""

    @abstractmethod
    def steps(self, session: TraceSession, reply: Any) -> list[Message]:
        """The steps of one reply, with all columns that the reply has not."""

    def within(self, session: TraceSession) -> Self:
        """This plan on an open world."""
        return self._with_prompts(session.available, session.about.model)

    def _with_prompts(self, available: Mapping[str, int], model: str) -> Self:
        """With so many prompts of each workload at most."""
        for workload in self.workloads or available:
            if workload not in available:
                raise ConfigError(
                    f"--workload {workload}: {model} has {', '.join(available)}"
                )
            if available[workload] < self.prompts:
                raise ConfigError(
                    f"--prompts {self.prompts}: workload {workload} of {model} has "
                    f"{available[workload]}; give as many at most"
                )
        return replace(self, workloads=self.workloads or tuple(available))


@dataclass(frozen=True, kw_only=True)
class TracePlan(Plan):
    """What one trace asks for; `seeds` are of temperatures above 0."""

    schema = SCHEMA
    columns = COLUMNS

    seeds: int = 1
    temperatures: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        for temperature in self.temperatures:
            if not 0.0 <= temperature < math.inf:
                raise ConfigError(f"--temperature {temperature}: must be 0 or more")
        # The whole tree is recorded: the best nodes of every depth up to the last.
        drafted = self.topk + (self.depth - 1) * self.topk**2
        most = min(drafted, self.depth * self.nodes)
        if most > MAX_NODES:
            raise ConfigError(
                f"--depth {self.depth}, --topk {self.topk}, --nodes {self.nodes}: a "
                f"tree of them has up to {most} nodes, and a trace numbers {MAX_NODES} "
                "at most; give less"
            )

    def replies(self) -> Iterator[Reply]:
        """Prompt by prompt, so that what is recorded so far is of every workload.

        At temperature 0 all seeds give one reply, which is recorded once.
        """
        for prompt in range(self.prompts):
            for temperature in self.temperatures:
                for seed in range(self.seeds if temperature else 1):
                    for workload in self.workloads:
                        yield Reply(workload, prompt, seed, temperature)

    def steps(self, session: TraceSession, reply: Reply) -> list[Message]:
        """The trees at every position."""
        return session.trace(reply, self.prompts, self.tokens)


@dataclass(frozen=True, kw_only=True)
class BudgetPlan(Plan):
    """What one recording of budgets asks for.

    `experts` are those of a layer, known once the world is open.
    """

    schema = BUDGET_SCHEMA
    columns = BUDGET_COLUMNS

    batches: tuple[int, ...] = (1,)
    budgets: tuple[int, ...]
    rules: tuple[str, ...] = tuple(RULES)
    experts: int = 0

    def __post_init__(self) -> None:
        known = (*RULES, *RIVALS)
        for rule in self.rules:
            if rule not in known:
                raise ConfigError(f"--rule {rule}: give one of {', '.join(known)}")

    def within(self, session: TraceSession) -> "BudgetPlan":
        """Prompts with their given text, and budgets below all experts."""
        about = session.about
        for budget in self.budgets:
            if not about.top_k <= budget < about.experts:
                raise ConfigError(
                    f"--budget {budget}: tokens of {about.model} run {about.top_k} of "
                    f"{about.experts} experts a layer; give {about.top_k} to "
                    f"{about.experts - 1}"
                )
        tokens = session.text_tokens(self.tokens)
        texts = {
            name: n * self.prompt_tokens // tokens
            for name, n in session.available.items()
        }
        plan = self._with_prompts(texts, about.model)
        return replace(plan, experts=about.experts)

    def replies(self) -> Iterator[BudgetedReply]:
        """Prompt by prompt, so that what is recorded so far is of every setting."""
        settings = [(rule, budget) for rule in self.rules for budget in self.budgets]
        for prompt in range(self.prompts):
            for rule, budget in [(NONE, self.experts), *settings]:
                for workload in self.workloads:
                    for given in (False, True):
                        yield BudgetedReply(rule, budget, workload, prompt, given)

    def steps(self, session: TraceSession, reply: BudgetedReply) -> list[Message]:
        """The steps under one setting."""
        return budgeted_steps(session, reply, self.prompts, self.tokens)

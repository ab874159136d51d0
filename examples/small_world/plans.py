"""What a recording asks for: traces of replies.

Every tree is verified whole, and one stands at every position, whatever was committed
there: a trace of cut trees could not tell a good cut from a lossy one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from evict_profile.errors import ConfigError
from evict_profile.traces.trace import Reply
from examples.small_world.engine.session import TraceSession
from examples.small_world.engine.tree import TreeShape

MAX_NODES = 1 << 15
"""Of a recorded tree: nodes name their parents by 16-bit integers (`COLUMNS`)."""


@dataclass(frozen=True, kw_only=True)
class TracePlan:
    """What one trace asks for.

    Attributes:
        workloads: all that the world has text of, if empty.
        depth, topk, nodes: levels of a tree, nodes expanded a level, nodes verified.
        batches: batch sizes whose whole steps are timed.
        seeds: replies a prompt at temperatures above 0.
    """

    prompts: int = 24
    tokens: int = 64
    workloads: tuple[str, ...] = ()
    depth: int = 5
    topk: int = 8
    nodes: int = 60
    batches: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 128
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

    @property
    def tree(self) -> TreeShape:
        return TreeShape(self.depth, self.topk, self.nodes)

    def replies(self) -> Iterator[Reply]:
        """Prompt by prompt, so that what is recorded so far is of every workload.

        At temperature 0 all seeds give one reply, which is recorded once.
        """
        for prompt in range(self.prompts):
            for temperature in self.temperatures:
                for seed in range(self.seeds if temperature else 1):
                    for workload in self.workloads:
                        yield Reply(workload, prompt, seed, temperature)

    def within(self, session: TraceSession) -> "TracePlan":
        """This plan on an open world, which must have its prompts."""
        available, model = session.available, session.about.model
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

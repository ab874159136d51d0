"""What to record: which replies, in which order, with which trees."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from evict_profile.errors import ConfigError
from evict_profile.traces.trace import About

MOST_NODES = 1 << 15
"""Of a recorded tree: nodes name their parents by 16-bit integers (`COLUMNS`)."""


@dataclass(frozen=True)
class ReplyKey:
    """What tells a reply from the others."""

    workload: str
    prompt: int
    seed: int
    temperature: float

    def __str__(self) -> str:
        return (
            f"{self.workload}, prompt {self.prompt}, seed {self.seed}, "
            f"temperature {self.temperature:g}"
        )


@dataclass(frozen=True)
class Plan:
    """What one recording asks for.

    Attributes:
        prompts: of each workload.
        tokens: of each reply.
        seeds: replies to each prompt at each temperature above 0.
        workloads: all that the world has, if empty.
        batches: batch sizes whose whole steps are timed.
        depth, fan, nodes: levels of a tree, nodes expanded a level, nodes verified.
        prompt_tokens: of each prompt.
    """

    prompts: int = 24
    tokens: int = 64
    seeds: int = 1
    temperatures: tuple[float, ...] = (0.0,)
    workloads: tuple[str, ...] = ()
    batches: tuple[int, ...] = (1, 4, 16)
    depth: int = 5
    fan: int = 8
    nodes: int = 60
    prompt_tokens: int = 128

    def __post_init__(self) -> None:
        self._require_sense()
        # The whole tree is recorded: the best nodes of every depth up to the last.
        drafted = self.fan + (self.depth - 1) * self.fan**2
        most = min(drafted, self.depth * self.nodes)
        if most > MOST_NODES:
            raise ConfigError(
                f"--depth {self.depth}, --fan {self.fan}, --nodes {self.nodes}: a tree "
                f"of them has up to {most} nodes, and a trace numbers {MOST_NODES} at "
                "most; give less"
            )

    def _require_sense(self) -> None:
        for name in ("prompts", "tokens", "seeds", "depth", "fan", "nodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: must be at least 1")
        for batch in self.batches:
            if batch < 1:
                raise ConfigError(f"--batch {batch}: must be at least 1")
        for temperature in self.temperatures:
            if not 0.0 <= temperature < math.inf:
                raise ConfigError(f"--temperature {temperature}: must be 0 or more")
        for option, values in (
            ("batch", self.batches),
            ("temperature", self.temperatures),
            ("workload", self.workloads),
        ):
            if len(set(values)) < len(values):
                raise ConfigError(f"--{option} has a value twice; give each once")

    def within(self, available: Mapping[str, int], about: About) -> "Plan":
        """This plan on a world, which has so many prompts of each workload.

        Raises:
            ConfigError: the world has no such workload, or too few prompts.
        """
        for workload in self.workloads or available:
            if workload not in available:
                raise ConfigError(
                    f"--workload {workload}: {about.model} has {', '.join(available)}"
                )
            if available[workload] < self.prompts:
                raise ConfigError(
                    f"--prompts {self.prompts}: workload {workload} of {about.model} "
                    f"has {available[workload]}; give as many at most"
                )
        return replace(self, workloads=self.workloads or tuple(available))

    def replies(self) -> Iterator[ReplyKey]:
        """Prompt by prompt, so that what is recorded so far is of every workload.

        At temperature 0 all seeds give one reply, which is recorded once.
        """
        for prompt in range(self.prompts):
            for temperature in self.temperatures:
                for seed in range(self.seeds if temperature else 1):
                    for workload in self.workloads:
                        yield ReplyKey(workload, prompt, seed, temperature)

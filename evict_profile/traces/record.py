"""Recording traces: a runner decodes, and its trees are kept.

The runner verifies every tree whole and answers one at every position, whatever was
committed there: a trace of cut trees could not tell a good cut from a lossy one.
"""

import base64
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from evict_profile.errors import ConfigError, EvictProfileError, RunnerError
from evict_profile.runner import Message, Runner
from evict_profile.traces.load import trace_of
from evict_profile.traces.recording import RecordingPlan, rows_of
from evict_profile.traces.schema import COLUMNS, Metadata, mark
from evict_profile.traces.trace import Reply, TraceInfo

MAX_NODES = 1 << 15
"""Of a recorded tree: nodes name their parents by 16-bit integers (`COLUMNS`)."""


@dataclass(frozen=True, kw_only=True)
class TracePlan(RecordingPlan):
    """What one trace asks for; `seeds` are of temperatures above 0."""

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

    def record(self, engine: Runner, about: TraceInfo, reply: Reply) -> pa.Table:
        """The trees at every position of one reply."""
        ask = {"do": "trace", **asdict(reply)}
        ask |= {"prompts": self.prompts, "tokens": self.tokens}
        rows = trace_rows(reply, engine.ask(ask).get("steps", []))
        try:
            # Now, and not when the file is read: a faulty engine is then still there.
            trace_of(mark(rows, Metadata(about)), f"the runner's reply ({reply})")
        except EvictProfileError as error:
            raise RunnerError(str(error)) from error
        return rows


def trace_rows(key: Reply, steps: list[Message]) -> pa.Table:
    """A runner's steps as rows of a trace; their routes come as base64."""
    return rows_of(key, steps, COLUMNS, _with_routes)


def _with_routes(step: Message) -> Message:
    return {**step, "routes": base64.b64decode(step["routes"], validate=True)}

"""Recording traces: a runner decodes, and its trees are kept.

The runner verifies every tree whole and answers one at every position, whatever was
committed there: a trace of cut trees could not tell a good cut from a lossy one.
"""

from pathlib import Path

import pyarrow as pa
from rich.console import Console

from evict_profile.errors import EvictProfileError, RunnerError
from evict_profile.sweep.client import Message
from evict_profile.traces.load import trace_of
from evict_profile.traces.plan import Plan, ReplyKey
from evict_profile.traces.recording import RUNNER, Recording, carry_out
from evict_profile.traces.rows import rows_of
from evict_profile.traces.schema import TRACE, marked


class TraceRecording(Recording[Plan]):
    """A trace in progress."""

    form = TRACE

    def reply(self, key: ReplyKey) -> pa.Table:
        """The trees at every place of one reply."""
        ask: Message = {
            "do": "trace",
            "workload": key.workload,
            "prompt": key.prompt,
            "prompts": self.plan.prompts,
            "seed": key.seed,
            "temperature": key.temperature,
            "tokens": self.plan.tokens,
        }
        rows = rows_of(key, self.engine.ask(ask).get("steps", []))
        try:
            # Now, and not when the file is read: a faulty engine is then still there.
            trace_of(marked(rows, self.about, ()), f"the runner's reply ({key})")
        except EvictProfileError as error:
            raise RunnerError(str(error)) from error
        return rows


def record(
    world: Path,
    out: Path,
    plan: Plan,
    console: Console,
    python: str | None = None,
    runner: str = RUNNER,
) -> None:
    """Record a plan's replies and clocks into a file, or the rest of them.

    Raises:
        ConfigError, StoreError, RunnerError, Interrupted: as `carry_out`.
    """
    carry_out(TraceRecording, world, out, plan, console, python, runner)

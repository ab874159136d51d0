"""Contenders decode the same replies with the real engine, in turns of a few steps.

The order of turns is drawn anew each time, so that whatever the machine does, it does
to all of them. Turns are sized so that all end together: what is left alone at the end
finds another machine.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import Answer, count
from evict_profile.errors import ConfigError
from evict_profile.io import parse_share
from evict_profile.replay.cell import MIXED
from evict_profile.replay.policies import MakePolicy, Policy
from evict_profile.replay.walk import reply_order
from evict_profile.stats import Floats
from evict_profile.table import files_of
from evict_profile.traces import Reply, Trace, load_traces
from runners.tree_decoding.budgets import Budget
from runners.tree_decoding.clocks import now
from runners.tree_decoding.serving import Job, Served, Serving
from runners.tree_decoding.session import TraceSession

TURN = 2
"""Steps that the contender of fewest steps makes before the next has its turn."""
CPU = torch.device("cpu")
RESAMPLES = 2000
PROMPT_TOKENS = 128

COLUMNS: dict[str, Callable[[Served], float]] = {
    "tokens": lambda s: sum(s.counted),
    "us": lambda s: s.step.times.step.us,
    "wall_us": lambda s: s.step.times.step.wall_us,
    "verify_us": lambda s: s.step.times.verify.us,
    "draft_us": lambda s: sum(t.us for t in s.step.times.levels),
    "fixed_us": lambda s: s.step.times.fixed.us,
    "verified": lambda s: sum(1 + t.token.shape[1] for t in s.step.trees),
    "committed": lambda s: sum(s.step.committed),
    "levels": lambda s: s.step.levels,
    "union": lambda s: union_of(s.step.routes),
}
"""Numbers of one step."""


def union_of(routes: torch.Tensor) -> float:
    """Distinct experts of routes [layers, T, k], mean over layers."""
    return sum(len(layer.unique()) for layer in routes) / len(routes)


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Contender:
    """What takes turns.

    Attributes:
        make: makes its policy.
        steps: that it is expected to make, as a replay has it.
        budget: that its verifications keep to, if any.
    """

    make: MakePolicy
    steps: int
    budget: Budget | None = None


@dataclass(frozen=True)
class Text:
    """What was decoded of one job.

    Attributes:
        job: its number.
        ids: prompt and reply, which may go on beyond the reply's end.
        prompt: tokens of the prompt.
    """

    job: int
    ids: list[int]
    prompt: int


class Timed:
    """A policy, and the CPU time that it took to decide."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.depth = policy.depth
        self.us = 0.0

    def deeper(self, *seen: Any) -> bool:
        """As the policy answers."""
        return bool(self._timed(self.policy.deeper, *seen))

    def keep(self, *seen: Any) -> Any:
        """As the policy answers."""
        return self._timed(self.policy.keep, *seen)

    def observe(self, *told: Any) -> None:
        """Told to the policy."""
        self._timed(self.policy.observe, *told)

    def _timed(self, do: Callable[..., Any], *told: Any) -> Any:
        begun = now(CPU)
        found = do(*told)
        self.us += (now(CPU) - begun).cpu_us
        return found


class Measured:
    """What one contender did on the real clock, step by step."""

    def __init__(
        self,
        steps: Sequence[Sequence[float]],
        turn: int,
        decided_us: float,
        texts: Sequence[Text] = (),
    ) -> None:
        """`steps`: of each its `COLUMNS`; `turn`: steps that a turn has."""
        self.turn = turn
        self.decision_us = decided_us / len(steps)
        self.texts = texts
        values = np.array(steps, dtype=np.float64).T
        self.columns: dict[str, Floats] = dict(zip(COLUMNS, values, strict=True))

    def mean(self, name: str) -> float:
        """Of a step."""
        return float(self.columns[name].mean())

    def tokens_per_s(self, clock: str) -> Floats:
        """As it was, then in resamples of turns."""
        return 1e6 * self.ratio(self.columns["tokens"], self.columns[clock], seed=0)

    def ratio(self, above: Floats, below: Floats, seed: int) -> Floats:
        """Of sums: as it was, then in resamples of turns, whose steps go together."""
        begins = np.arange(0, len(above), self.turn)
        return resampled(
            np.add.reduceat(above, begins), np.add.reduceat(below, begins), seed
        )


def resampled(above: Floats, below: Floats, seed: int) -> Floats:
    """The ratio of two sums: as it was, then with entries drawn again together."""
    both = np.stack([above, below])
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(above), (RESAMPLES, len(above)))
    sums = np.hstack([both.sum(axis=1)[:, None], both[:, drawn].sum(axis=2)])
    found: Floats = sums[0] / sums[1]
    return found


def interval(values: Floats) -> Interval:
    """The first value, and where 95 % of the others lie."""
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return Interval(*(round(float(x), 4) for x in (values[0], low, high)))


class Decoding:
    """A contender at work, with an engine of its own."""

    def __init__(
        self,
        session: TraceSession,
        contender: Contender,
        jobs: Sequence[Job],
        batch: int,
    ) -> None:
        """`jobs` are decoded in the order in which a replay walks them."""
        tokens = max(job.tokens for job in jobs)
        self.policy = Timed(contender.make())
        engine = session.engine(batch, tokens, contender.budget)
        order = reply_order(len(jobs), 0)
        self.serving = Serving(engine, self.policy, jobs, order, batch)
        self.steps: list[list[float]] = []
        self.texts: dict[int, Text] = {}

    def take_turn(self, steps: int) -> None:
        """So many steps, or as many as are left."""
        for _ in range(steps):
            if not self.serving.ended:
                self._step()

    def _step(self) -> None:
        seated = list(self.serving.engine.requests)
        served = self.serving.serve()
        self.steps.append([float(read(served)) for read in COLUMNS.values()])
        # The lists of ids grow with the requests.
        for job, request in zip(served.jobs, seated, strict=True):
            self.texts[id(request.ids)] = Text(job, request.ids, request.prompt)

    def measured(self, turn: int) -> Measured:
        """What it did."""
        texts = tuple(self.texts.values())
        return Measured(self.steps, turn, self.policy.us, texts)


def serve_all(
    session: TraceSession,
    trace: Trace,
    contenders: Mapping[str, Contender],
    prompts: int,
    batch: int,
) -> dict[str, Measured]:
    """Decode the trace's replies with every contender, so many steps a turn."""
    jobs = [session.job(ask_of(reply, prompts)) for reply in trace.replies]
    at_work = {
        name: Decoding(session, contender, jobs, batch)
        for name, contender in contenders.items()
    }
    turns = turns_of({name: each.steps for name, each in contenders.items()})
    rng = np.random.default_rng(0)
    while busy := [name for name, each in at_work.items() if not each.serving.ended]:
        for name in rng.permutation(busy):
            at_work[name].take_turn(turns[name])
    return {name: each.measured(turns[name]) for name, each in at_work.items()}


def turns_of(steps: Mapping[str, int]) -> dict[str, int]:
    """Steps of a turn, in proportion to the steps that each makes in all."""
    fewest = min(steps.values())
    return {name: round(TURN * count / fewest) for name, count in steps.items()}


def ask_of(reply: Reply, prompts: int) -> dict[str, Any]:
    """The request that had this reply traced."""
    return {
        "workload": reply.workload,
        "prompt": reply.prompt,
        "prompts": prompts,
        "seed": reply.seed,
        "temperature": reply.temperature,
        "tokens": reply.tokens,
    }


def arguments(about: str, out: str) -> argparse.ArgumentParser:
    """What every comparison takes; `about` is its docstring, `out` what it writes."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("world", type=Path)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--prompts", type=count, required=True, help="as traced")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--batch", type=count, action="append")
    parser.add_argument("--workload", action="append")
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser


def answer_of(asked: argparse.Namespace) -> Answer:
    """Where all numbers go.

    Raises:
        StoreError: it cannot be written, or would change what is read.
    """
    return Answer(asked.out, [asked.world, asked.traces, *files_of(asked.table)])


def open_trace(asked: argparse.Namespace) -> tuple[Trace, TraceSession]:
    """The part of a trace that is asked for, and its world, with trees as traced.

    Raises:
        ConfigError: fewer prompts than were traced; other texts would be decoded.
    """
    whole = load_traces(asked.traces)
    last = max(reply.prompt for reply in whole.replies)
    if last >= asked.prompts:
        raise ConfigError(
            f"--prompts {asked.prompts}: the trace has a prompt {last}, counted from "
            "0; give the --prompts that it was traced with"
        )
    trace = whole.part(*parse_share("--part", asked.part))
    shared = ("depth", "fan", "nodes", "reference_us")
    tree = {name: getattr(trace.about, name) for name in shared}
    options = tree | {"prompt_tokens": PROMPT_TOKENS}
    return trace, TraceSession(str(asked.world), options)


def workloads(
    trace: Trace, asked: argparse.Namespace, temperature: float
) -> Iterator[tuple[Trace, str]]:
    """Parts of a trace that are compared apart; all and the mix if none is named."""
    for workload in asked.workload or [*trace.workloads, MIXED]:
        name = None if workload == MIXED else workload
        yield trace.only(name, temperature), workload

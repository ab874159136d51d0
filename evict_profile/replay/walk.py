"""Walking a trace as an engine decodes: B requests in lockstep, tree after tree.

The rules are few, so that an engine can follow them exactly:

- `reply_order(replies, seed)` is an endless order: one seeded permutation of the
  replies, again and again. Seats 0..B-1 take its first B.
- In each step every seat drafts to one common depth, verifies, and commits its
  accepted tokens and one of the target's own. A reply counts tokens up to its end; the
  policy is told of all that were committed.
- A seat whose reply has ended takes the next reply of the order before the next step;
  lower seats first. So the batch is always full.
- The run ends with the step in which the tokens counted reach the number that all
  replies have together.

One policy serves the whole batch. Before each level it is asked whether to draft it,
with the N best nodes drafted so far; it then keeps some of the N best of all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import Protocol

import numpy as np

from evict_profile.replay.ground import Ground
from evict_profile.replay.policies import Policy
from evict_profile.replay.prices import Prices, StepPrice
from evict_profile.stats import Bools, Floats, Ints

COLUMNS = (
    "tokens", "us", "requests", "accepted", "verified", "depth", "union", "verify_us",
    "draft_us", "fixed_us", "step_us",
)  # fmt: skip
"""What is summed over the steps of a prompt. `us` is the request's share of a step's
time, and `requests` counts its steps; from `depth` on it is whole steps that are."""


def reply_order(replies: int, seed: int) -> Iterator[int]:
    """Numbers of replies in the order in which seats take them; endless."""
    return cycle(np.random.default_rng(seed).permutation(replies).tolist())


class Chooser(Protocol):
    """What decides in each step of a walk."""

    def choose(self, rows: Ints) -> tuple[int, Bools]:
        """The depth drafted, and which nodes of that `Level` are verified, [B, N]."""

    def observe(self, committed: int, step_us: float) -> None:
        """How the step went."""


@dataclass(frozen=True)
class Run:
    """One walk, step by step; S steps of B requests.

    Attributes:
        rows: int64 [S, B], steps of the trace.
        counted: int64 [S, B], tokens committed, up to the reply's end.
        accepted, verified: int64 [S, B], draft tokens accepted; tokens verified, the
            root included.
        depth: int64 [S], levels drafted.
        price: float64 [S, 4]: verification, drafting, the rest; and the union.
    """

    rows: Ints
    counted: Ints
    accepted: Ints
    verified: Ints
    depth: Ints
    price: Floats

    @cached_property
    def tokens(self) -> int:
        """Tokens counted."""
        return int(self.counted.sum())

    @cached_property
    def step_us(self) -> Floats:
        """Time of each step, float64 [S]."""
        us: Floats = self.price[:, :3].sum(axis=1)
        return us

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole batch a second."""
        return 1e6 * self.tokens / float(self.step_us.sum())


def walk(ground: Ground, policy: Policy, prices: Prices, batch: int, seed: int) -> Run:
    """Decode the trace's replies under a policy; see the module for the rules."""
    return walk_with(ground, Asking(ground, policy), prices, batch, seed)


def walk_with(
    ground: Ground, chooser: Chooser, prices: Prices, batch: int, seed: int
) -> Run:
    """As `walk`, for anything that chooses."""
    order = reply_order(len(ground.first), seed)
    rows = ground.first[list(islice(order, batch))]
    log, left = _Log(), ground.tokens
    while left > 0:
        depth, kept = chooser.choose(rows)
        level = ground.drafted(depth)
        price = prices.step(rows, level.place[rows][kept], depth)
        accepted = (kept & level.accepted[rows]).sum(axis=1)
        chooser.observe(batch + int(accepted.sum()), price.us)
        counted = np.minimum(1 + accepted, ground.left[rows])
        log.add(rows, counted, accepted, 1 + kept.sum(axis=1), depth, price)
        left -= int(counted.sum())
        rows = ground.onward(rows, 1 + accepted)
        for seat in np.flatnonzero(rows < 0):
            rows[seat] = ground.first[next(order)]
    return log.run()


@dataclass(frozen=True)
class Asking:
    """A policy at work: drafts level by level, and keeps of the best."""

    ground: Ground
    policy: Policy

    def choose(self, rows: Ints) -> tuple[int, Bools]:
        """As an engine asks: deeper before each level, then what to keep."""
        context = self.ground.mean_context(rows)
        depth = 0
        while depth < self.policy.depth and self.policy.deeper(
            *self._seen(rows, depth), context
        ):
            depth += 1
        return depth, self.policy.keep(*self._seen(rows, depth), context)

    def observe(self, committed: int, step_us: float) -> None:
        """Passed on."""
        self.policy.observe(committed, step_us)

    def _seen(self, rows: Ints, depth: int) -> tuple[Floats, Ints, Ints]:
        level = self.ground.drafted(depth)
        return level.path_prob[rows], level.depth[rows], level.parent[rows]


class _Log:
    """Steps as they come."""

    def __init__(self) -> None:
        self._batches: list[tuple[Ints, Ints, Ints, Ints]] = []
        self._depths: list[int] = []
        self._prices: list[tuple[float, float, float, float]] = []

    def add(
        self, rows: Ints, counted: Ints, accepted: Ints, verified: Ints, depth: int,
        price: StepPrice,
    ) -> None:  # fmt: skip
        self._batches.append((rows.copy(), counted, accepted, verified))
        self._depths.append(depth)
        self._prices.append(
            (price.verify_us, price.draft_us, price.fixed_us, price.union)
        )

    def run(self) -> Run:
        rows, counted, accepted, verified = np.array(self._batches).swapaxes(0, 1)
        return Run(
            rows,
            counted,
            accepted,
            verified,
            np.array(self._depths),
            np.array(self._prices),
        )


def account(ground: Ground, runs: list[Run]) -> Floats:
    """Sums by seed, prompt and column, float64 [seeds, prompts, columns]."""
    return np.stack([_by_prompt(ground, run) for run in runs])


def _by_prompt(ground: Ground, run: Run) -> Floats:
    steps, batch = run.rows.shape
    prompt = ground.prompt[ground.reply[run.rows]].ravel()
    whole = {
        "us": run.step_us / batch,
        "depth": run.depth,
        "union": run.price[:, 3],
        "verify_us": run.price[:, 0],
        "draft_us": run.price[:, 1],
        "fixed_us": run.price[:, 2],
        "step_us": run.step_us,
    }
    own = {
        "tokens": run.counted,
        "requests": np.ones((steps, batch)),
        "accepted": run.accepted,
        "verified": run.verified,
        **{name: np.repeat(values, batch) for name, values in whole.items()},
    }
    sums = [
        np.bincount(prompt, own[name].ravel(), minlength=len(ground.prompts))
        for name in COLUMNS
    ]
    return np.stack(sums, axis=1)


def tokens_per_s(sums: Floats) -> Floats:
    """Tokens of the whole batch a second, float64 [1 + resamples]."""
    rate: Floats = 1e6 * sums[COLUMNS.index("tokens")] / sums[COLUMNS.index("us")]
    return rate


def mean(sums: Floats, column: str) -> Floats:
    """A column over the steps of requests, float64 [1 + resamples]."""
    found: Floats = sums[COLUMNS.index(column)] / sums[COLUMNS.index("requests")]
    return found

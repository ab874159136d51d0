"""Ratios of sums over replies, and their intervals by bootstrap over prompts.

Throughput is all tokens over all time, so an interval must resample what is
independent: prompts, not steps. Every policy decodes the same prompts, so a comparison
takes both sides from the same resample, and most of the spread between prompts
cancels. Orders of replies (seeds) are resampled too. At a batch above one a step's
time is shared out equally among its requests.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.pricing import Floats
from evict_profile.replay.ground import Ground
from evict_profile.replay.walk import Run

RESAMPLES = 2000
CONFIDENCE = 0.95
FEWEST_PROMPTS = 5
"""With fewer, resampling tells nothing, and intervals are unbounded."""

COLUMNS = (
    "tokens", "us", "requests", "accepted", "verified", "depth", "union", "verify_us",
    "draft_us", "fixed_us", "step_us",
)  # fmt: skip
"""What is summed over the steps of a prompt. `us` is the request's share of a step's
time, and `requests` counts its steps; from `depth` on it is whole steps that are."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; unbounded where too little is known."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether it has an interval of some width."""
        return -np.inf < self.low < self.high < np.inf

    @property
    def above_one(self) -> bool:
        """Whether a ratio is surely above one."""
        return self.low > 1.0

    @property
    def below_one(self) -> bool:
        """Whether a ratio is surely below one."""
        return self.high < 1.0


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


class Resamples:
    """The same random prompts and seeds for every estimate of one contest."""

    def __init__(self, seeds: int, prompts: int) -> None:
        """Draw them; always the same ones for the same numbers."""
        rng = np.random.default_rng(0)
        self._known = prompts >= FEWEST_PROMPTS
        self._seeds, self._prompts = _weights(rng, seeds), _weights(rng, prompts)

    def sums(self, account: Floats) -> Floats:
        """Columns of an account summed, float64 [columns, 1 + resamples].

        The first of each column is the sum as it was found.
        """
        by_seed = np.tensordot(self._prompts, account, axes=(1, 1))
        sums: Floats = np.einsum("rs,rsc->cr", self._seeds, by_seed)
        return sums

    def estimate(self, values: Floats) -> Estimate:
        """A number reckoned from `sums`, float64 [1 + resamples], with its interval."""
        if not self._known:
            return Estimate(float(values[0]), -np.inf, np.inf)
        tail = 50.0 * (1.0 - CONFIDENCE)
        low, high = np.percentile(values[1:], [tail, 100.0 - tail])
        return Estimate(float(values[0]), float(low), float(high))

    def mean(self, sums: Floats, column: str, per: str = "requests") -> Estimate:
        """One column over another."""
        return self.estimate(sums[COLUMNS.index(column)] / sums[COLUMNS.index(per)])


def tokens_per_s(sums: Floats) -> Floats:
    """Tokens of the whole batch a second, float64 [1 + resamples]."""
    rate: Floats = 1e6 * sums[COLUMNS.index("tokens")] / sums[COLUMNS.index("us")]
    return rate


def _weights(rng: np.random.Generator, count: int) -> Floats:
    """How often each of so many is drawn; the first row draws each once."""
    drawn = rng.multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES)
    return np.vstack([np.ones(count), drawn])

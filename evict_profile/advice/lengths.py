"""Tokens that a step commits, by what it drafts, and how some lengths give others.

A chain of K drafts commits the accepted prefix and one token of the target, so a longer
chain also gives the shorter ones. Beyond the K that was stated a rule of published
curves goes on, with an interval that grows with the distance in K.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from evict_profile.errors import ConfigError, DataError
from evict_profile.records import replace
from evict_profile.stats import Floats, Ints

LONGEST = 16
"""The longest draft that is fitted in any case."""

REJECTION_GROWTH = 1.09
"""Growth of the chance of a rejection from one draft to the next; see `of_rate`."""


@dataclass(frozen=True, eq=False)
class AcceptedLengths:
    """Tokens that a step commits, for each way to draft; the first drafts nothing.

    By way: tokens a request verifies, root included; levels drafted; mean committed
    tokens, the target's included. `half_width` is half of the relative 95 % interval: 0
    if unknown, infinite for too few prompts. `stated` are the K of chains whose length
    was stated, to which others are fitted; () of a rate and of trees. `served` has
    measured speeds over plain decoding by K; `by_batch` has the lengths of each batch
    where they differ.
    """

    kind: Literal["chain", "tree"]
    source: str
    width: Ints
    levels: Ints
    committed: Floats
    half_width: Floats
    stated: tuple[int, ...] = ()
    served: Mapping[int, float] = field(default_factory=dict)
    by_batch: Mapping[int, "AcceptedLengths"] = field(default_factory=dict)

    def at(self, batch: int) -> "AcceptedLengths":
        """At a batch; between two that were measured, by the log of the batch."""
        if not self.by_batch:
            return self
        ends = [max((b for b in self.by_batch if b <= batch), default=0)]
        ends += [min((b for b in self.by_batch if b >= batch), default=0)]
        if not all(ends):
            known = ", ".join(map(str, self.by_batch))
            raise DataError(
                f"accepted lengths were measured at batch {known}, and nothing is "
                f"known beyond; serve batch {batch}, or give one as --accept 3:2.64"
            )
        one, other = (self.by_batch[end] for end in ends)
        if one is other:
            return one
        share = math.log(batch / ends[0]) / math.log(ends[1] / ends[0])
        return _between(one, other, share)

    @property
    def longest_stated(self) -> int | None:
        return max(self.stated, default=None)

    @property
    def fitted(self) -> bool:
        """Whether some lengths are fitted to those that were stated."""
        return bool(self.stated) and not {*self.levels[1:]} <= {*self.stated}

    def name(self, way: int) -> str:
        """ "K=3", "K=5 fitted" or "16 tokens, depth 5"."""
        levels = int(self.levels[way])
        if not levels:
            return "none"
        if self.kind == "tree":
            return f"{self.width[way]} tokens, depth {levels}"
        fitted = self.stated and levels not in self.stated
        return f"K={levels} fitted" if fitted else f"K={levels}"


def _between(
    one: AcceptedLengths, other: AcceptedLengths, share: float
) -> AcceptedLengths:
    """Chains at a place between two batches; the intervals hold those of both."""
    both = min(len(one.levels), len(other.levels))
    logs = np.log([each.committed[:both] for each in (one, other)])
    half = np.array([each.half_width[:both] for each in (one, other)])
    mean = (1.0 - share) * logs[0] + share * logs[1]
    return replace(
        one,
        width=one.width[:both],
        levels=one.levels[:both],
        committed=np.exp(mean),
        half_width=(np.abs(logs - mean) + half).max(axis=0),
        stated=tuple(sorted({*one.stated, *other.stated})),
    )


def of_lengths(lengths: Mapping[int, float], source: str) -> AcceptedLengths:
    for drafts, length in lengths.items():
        if drafts < 1 or not 1.0 <= length <= drafts + 1:
            raise ConfigError(
                f"{source}: a step that drafts {drafts} commits 1 to {drafts + 1} "
                f"tokens, and {length:g} was given; give acceptance lengths, the "
                "target's own token included"
            )
    stated = tuple(sorted(lengths))
    levels = np.array([0, *stated])
    committed = np.array([1.0, *(lengths[k] for k in stated)])
    half_width = np.zeros(len(levels))
    return AcceptedLengths(
        "chain", source, levels + 1, levels, committed, half_width, stated
    )


def of_rate(rate: float) -> AcceptedLengths:
    """From the chance that the first draft is accepted.

    The k-th draft, given those before it, is accepted with max(0, 1 - (1 - rate)
    1.09^(k - 1)). 1.09 is the median of 55 groups of EAGLE-3 runs at K = 3, 5, 7
    (quartiles 1.06 to 1.13; benchmarks/served/data/specbundle.csv); the 14 curves of
    inferencex-golden-al.csv beside it have 1.07 to 1.6. A constant rate gives 3 % too
    much at K = 5 and 5 % at K = 7.
    """
    lengths = _lengths_at(np.array(rate), LONGEST)
    source = (
        f"the first draft is accepted at {rate:g}, and rejection grows by 9 % a draft"
    )
    found = of_lengths(dict(enumerate(lengths.tolist(), 1)), source)
    return replace(found, stated=())


def _lengths_at(rate: Floats, longest: int) -> Floats:
    """Lengths at K = 1, 2 and so on by `of_rate`, float64 [..., longest]."""
    rejected = (1.0 - rate[..., None]) * REJECTION_GROWTH ** np.arange(longest)
    chances = np.cumprod(np.maximum(1.0 - rejected, 0.0), axis=-1)
    return np.asarray(1.0 + np.cumsum(chances, axis=-1), dtype=np.float64)


def of_some(lengths: Mapping[int, float], source: str) -> AcceptedLengths:
    """All K up to 16, or to a longer one that is stated, from the lengths of some.

    Each stated length has the rate by which `of_rate` gives it. Between two of them the
    rate is on a straight line; elsewhere it is that of the nearest. Half of an interval
    is 22 % of |log(K / stated K)|, which holds 96 % of 1,648 lengths of 110 published
    curves from one other length (tests/advice/test_acceptance.py).
    """
    given = of_lengths(lengths, source)
    stated = given.levels[1:]
    longest = max(LONGEST, int(stated[-1]))
    rates, drafts = np.linspace(0.0, 1.0, 2001), np.arange(1, longest + 1)
    curves = _lengths_at(rates, longest).T
    rate = [np.interp(lengths[k], curves[k - 1], rates) for k in stated.tolist()]
    fitted = _lengths_at(np.interp(drafts, stated, rate), longest).diagonal()
    apart = np.abs(np.log(drafts[:, None] / stated)).min(axis=1)
    every = dict(enumerate(fitted.tolist(), 1)) | dict(lengths)
    found = of_lengths(every, f"{source}, and fitted to them at other K")
    half_width = np.array([0.0, *0.22 * apart])
    return replace(found, half_width=half_width, stated=given.stated)

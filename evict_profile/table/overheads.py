"""What a served step takes in addition to the forward that a table covers.

A composed table adds up kernels at the union of uniform routing. A server also runs
small kernels between them, work for each token, drafting, and real text activates
fewer experts. For a batch B, n verified tokens a request and L drafted levels

    step(B, n, L) = C(B n, at the union's share s) + layers * f + B n * h
                    + (n > 1) * (g + L * (d + t * [more than one branch]))

where plain decoding is n = 1, L = 0. Runs that others served separate these six
(`python -m benchmarks.served`); a user's own runs replace them
(`evict_profile.calibrate.served`). A further time of a level for each request is
fitted to zero beside h.

One error remains, of what a step takes beyond plain decoding: a ratio of 1 has none of
it. An error common to all steps cancels in their ratios.
"""

import numpy as np
from msgspec import Struct

from evict_profile.records import NotNegative, Positive
from evict_profile.stats import Floats
from evict_profile.table.parts import TermCost
from evict_profile.table.workload import ActivationCurve, DraftClock, Drafting

LEVELS = 32
"""Drafted levels that clocks are written for; deeper ones take as long as the last."""


class Amounts(Struct, frozen=True):
    """s, f, h, g, d and t of the model above; U = k + s (U_uniform - k)."""

    union_share: Positive
    layer_us: NotNegative
    token_us: NotNegative
    round_us: NotNegative
    level_us: NotNegative
    branch_us: NotNegative


class Overheads(Struct, frozen=True):
    """The most likely amounts, each one's standard deviation, and the error left.

    `source` names the `runs` that they were learnt from. `growth` is the error of what
    a step takes beyond plain decoding, a standard deviation of the log.
    """

    source: str
    runs: int
    amounts: Amounts
    spread: Amounts
    growth: NotNegative

    def __str__(self) -> str:
        a = self.amounts
        return (
            f"{a.layer_us:.0f} us a layer, {a.token_us:.0f} us a token, "
            f"{a.round_us / 1e3:.2f} ms a step that drafts and "
            f"{a.level_us / 1e3:.2f} ms a level (branches {a.branch_us / 1e3:.2f} ms "
            "more), and "
            f"{a.union_share:.0%} of the experts that uniform routing adds to one "
            f"token's; by {self.source}. Error of what a step takes beyond plain "
            f"decoding: {self.growth:.0%}, one standard deviation"
        )

    def drafting(self, batches: tuple[int, ...], engine: str, topk: int) -> Drafting:
        """The time of drafting so many branches, for each of these batches."""
        known = self.amounts
        level_us = known.level_us + (topk > 1) * known.branch_us
        levels = tuple((level_us * np.arange(LEVELS + 1)).tolist())
        clocks = (DraftClock(batch, levels, known.round_us, 0.0) for batch in batches)
        return Drafting(self.source, engine, tuple(clocks))

    def terms(self, layers: int, fixed_us: float) -> tuple[TermCost, ...]:
        """What they add to a forward; `fixed_us` of it is in the costs already."""
        every_us = max(layers * self.amounts.layer_us - fixed_us, 0.0)
        return (
            TermCost("one", 0.0, None, every_us),
            TermCost("tokens", 0.0, None, self.amounts.token_us),
        )

    def ratio_sd(self, ratio: Floats | float) -> Floats:
        """Error of a step over plain decoding, sd of its log, shaped as the ratio."""
        beyond = 1.0 - 1.0 / np.maximum(ratio, 1.0)
        return self.growth * beyond


def scaled(curve: ActivationCurve, top_k: int, share: float) -> ActivationCurve:
    """The curve of a text that activates this share of what it exceeds one token by."""
    union = np.array(curve.union)
    union = np.where(union > top_k, top_k + share * (union - top_k), union)
    return ActivationCurve(
        f"{curve.workload}, times {share:.2f}", curve.is_guess, tuple(union.tolist())
    )


RECORD = Overheads(
    source="runs that others served (benchmarks/served)",
    runs=295,
    amounts=Amounts(0.763, 46.0, 32.5, 936.0, 295.0, 132.0),
    spread=Amounts(0.08, 10.0, 30.0, 400.0, 100.0, 100.0),
    growth=0.16,
)
"""Of SGLang on H200, most of them at 8 requests: what `benchmarks.served` fits."""

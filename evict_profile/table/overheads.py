"""What a served step takes in addition to the forward that a table covers.

A server also runs small kernels, work for each token and drafting, and real text
activates fewer experts than uniform routing. For batch B, n verified tokens a request
and L drafted levels (plain decoding: n = 1, L = 0)

    step(B, n, L) = C(B n, at the union's share s) + layers * f + B n * h
                    + (n > 1) * (g + L * (d + t * [more than one branch]))

The amounts are fitted to published runs (`python -m benchmarks.served`), whose level is
a forward of an EAGLE-3 head. `Drafter` says what other drafters run. Only their sum is
identified. A server's own runs correct a predicted step by one number a batch
(`OwnStep`).

The error is of growth beyond plain decoding, since an error common to all steps cancels
in ratios. It is known near the batches, engine and GPU of the runs, and larger
elsewhere. It includes that s differs by model and acceptance: nine traced models change
growth by 7 % at batch 1 and 10 % at batch 8 (`benchmarks.served.unions`).
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike

from evict_profile.config.model import ModelSpec
from evict_profile.records import Count, NotNegative, Positive
from evict_profile.stats import Bools, Floats
from evict_profile.table.parts import TermCost
from evict_profile.table.workload import ActivationCurve, DraftClock

LEVELS = 32
"""Drafted levels in a clock; deeper ones take as long as the last."""


TWO_SIDED = 1.96

NEAR = 2.0
"""Largest ratio to a compared batch at which its error is used: an assumption."""

UNSEEN_GROWTH = 0.8
"""Error of growth where no run was compared: the root mean square of 0.5, 1.0 and 1.0
(`benchmarks/served/data/new-2026.csv`), and 0.6 and 0.9 of runs that are not published.
"""

OWN_GROWTH = 0.5
"""Near the batches of a server's own runs: 0.1 and 0.2 for another
setting (gpt-oss, SpecBundle), 0.7 for the same one at another temperature
(`benchmarks/served/data/new-2026.csv`)."""

DATASHEET_GROWTH = 0.9
"""`UNSEEN_GROWTH`, and 0.4 between data sheets and composed tables of Qwen3-30B-A3B on
H100 and H200."""


class Drafter(Struct, frozen=True):
    """A kind of `configs/draft_methods.yaml`; "pard" and "dflash" draft in one forward.

    `layers` and `weights` are of a dense checkpoint whose time is computed.
    """

    kind: str = "eagle3"
    layers: int = 0
    weights: int = 0

    @classmethod
    def of(cls, model: ModelSpec) -> "Drafter":
        return cls("mtp" if model.mtp_layers else "eagle3")

    @property
    def forwards(self) -> Floats:
        """Forwards by drafted levels, float64 [LEVELS + 1]."""
        levels = np.arange(LEVELS + 1.0)
        return np.minimum(levels, 1.0) if self.kind in ("pard", "dflash") else levels


class Amounts(Struct, frozen=True):
    """s, f, h, g, d and t of the model above; U = k + s (U_uniform - k)."""

    union_share: Positive
    layer_us: NotNegative
    token_us: NotNegative
    round_us: NotNegative
    level_us: NotNegative
    branch_us: NotNegative

    def union(self, uniform: Floats, top_k: int) -> Floats:
        union = top_k + self.union_share * (uniform - top_k)
        return np.where(uniform > top_k, union, uniform)

    def scaled(self, curve: ActivationCurve, top_k: int) -> ActivationCurve:
        union = tuple(self.union(np.array(curve.union), top_k).tolist())
        workload = f"{curve.workload}, times {self.union_share:.2f}"
        return ActivationCurve(workload, curve.is_guess, union)

    def levels_us(self, levels: ArrayLike, topk: int) -> Floats:
        return np.multiply(levels, self.level_us + (topk > 1) * self.branch_us)


class OwnStep(Struct, frozen=True):
    """How a server's steps at a batch differ from those that the amounts predict.

    Attributes:
        plain: plain step over the predicted one.
        share: growth with each further token and level, over the predicted growth.
        fixed_us: the rest of a step that drafts.
        floor_us: the least that a forward of drafts takes beyond a plain one, where
            the host bounds it; 0 where it does not.
    """

    batch: Count
    plain: Positive
    share: NotNegative
    fixed_us: NotNegative = 0.0
    floor_us: NotNegative = 0.0

    @classmethod
    def of_plain(cls, batch: int, plain: float) -> "OwnStep":
        """From a plain step alone, over the predicted one.

        What it takes beyond the prediction is host time, which drafts do not lengthen:
        growth stays in microseconds. A faster server is as much faster with drafts.
        """
        return cls(batch, plain, min(1.0, 1.0 / plain))

    def forward_us(self, us: Floats, plain_us: Floats, drafts: Bools) -> Floats:
        """A forward's time, from the predicted one and that of plain decoding."""
        beyond_us = self.plain * self.share * (us - plain_us)
        beyond_us = np.maximum(beyond_us, np.where(drafts, self.floor_us, -np.inf))
        return np.asarray(self.plain * plain_us + beyond_us)

    def clock(self, known: DraftClock) -> DraftClock:
        scale = self.plain * self.share
        levels_us = tuple(scale * us for us in known.draft_us)
        fixed_us = scale * known.fixed_us + self.fixed_us
        plain_us = self.plain * known.plain_fixed_us
        token_us = scale * known.token_us
        own = known.batch, levels_us, fixed_us, plain_us
        deciding_us = known.mechanism_us
        return DraftClock(*own, token_us=token_us, mechanism_us=deciding_us)


def own_at(steps: Sequence[OwnStep], batch: float) -> OwnStep:
    return min(steps, key=lambda each: abs(math.log(each.batch / batch)))


class Overheads(Struct, frozen=True):
    """The most likely amounts, their standard deviations, and the error left.

    `growth`, a standard deviation of the log, is known near `batches`. `own` are a
    server's own steps; nothing is predicted far outside of their batches.
    """

    source: str
    runs: int
    amounts: Amounts
    spread: Amounts
    growth: NotNegative
    batches: tuple[int, ...] = ()
    own: tuple[OwnStep, ...] = ()

    def __str__(self) -> str:
        if self.own:
            return f"as in {self.source}. {self._error_said}"
        a = self.amounts
        return (
            f"{a.layer_us:.0f} us per layer, {a.token_us:.0f} us per token, "
            f"{a.round_us / 1e3:.2f} ms per drafting step, {a.level_us / 1e3:.2f} ms "
            f"per level ({a.branch_us / 1e3:.2f} ms more with branches); experts "
            f"beyond one token's: {a.union_share:.0%} of uniform routing; fitted to "
            f"{self.source}. {self._error_said}"
        )

    @property
    def _error_said(self) -> str:
        return (
            "Error of a step over plain decoding, as one standard deviation: "
            f"{self.error}"
        )

    @property
    def error(self) -> str:
        elsewhere = f"a factor of {math.exp(self.growth_at(math.inf)):.1f}"
        if not self.batches:
            return elsewhere
        factor = math.exp(self.growth)
        return f"a factor of {factor:.1f} at batch {self.near}, {elsewhere} at others"

    @property
    def near(self) -> str:
        return ", ".join(f"{b / NEAR:g}..{b * NEAR:g}" for b in self.batches)

    def growth_at(self, batch: float) -> float:
        seen = self._seen(batch)
        return self.growth if seen else max(self.growth, UNSEEN_GROWTH)

    def ratio_interval(
        self, ratio: float, batch: int, width: int, levels: int, plain_us: float
    ) -> tuple[float, float]:
        """The 95 % interval of a step over plain decoding's, which takes `plain_us`.

        Where no run was compared, the amounts' differences between deployments are
        added.
        """
        beyond, apart = max(ratio - 1.0, 0.0), 0.0
        times = math.exp(TWO_SIDED * self.growth_at(batch))
        if not self._seen(batch):
            spread, tokens = self.spread, batch * (width - 1)
            drafting_us = math.hypot(spread.round_us, levels * spread.level_us)
            sd_us = math.hypot(drafting_us, tokens * spread.token_us)
            apart = TWO_SIDED * sd_us / plain_us
        low = ratio - beyond * (1.0 - 1.0 / times)
        return low, ratio + math.hypot(beyond * (times - 1.0), apart)

    def _seen(self, batch: float) -> bool:
        return any(each / NEAR <= batch <= each * NEAR for each in self.batches)

    def terms(self, layers: int) -> tuple[TermCost, ...]:
        return (
            TermCost("one", 0.0, None, layers * self.amounts.layer_us),
            TermCost("tokens", 0.0, None, self.amounts.token_us),
        )


NO_AMOUNTS = Amounts(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
RECORD_PLACE = ("sglang", "NVIDIA H200")

RECORD = Overheads(
    source="runs of SGLang on H200 with EAGLE-3 (benchmarks/served)",
    runs=295,
    amounts=Amounts(0.763, 46.0, 32.5, 936.0, 295.0, 132.0),
    spread=Amounts(0.08, 10.0, 30.0, 400.0, 100.0, 100.0),
    growth=0.27,
    batches=(8,),
)
"""Growth of three deployments, each predicted from the others, errs by 0.16; Student's
t for three is 3.18, not 1.96."""

RECORD_ELSEWHERE = replace(RECORD, growth=UNSEEN_GROWTH, batches=())

"""Gates on public rows: whether they can cost an engine.

They find benchmarks that keep weights in the cache, kernels without tuning, and wrong
labels, by the rows' own numbers.
"""

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from evict_profile.fit.gates import is_good
from evict_profile.sources.curves import Interval
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.pairs import BYTES_PER_VALUE
from evict_profile.sources.rows import BF16
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.table import Gate

SLOPE_RANGE = (0.4, 1.15)
"""Implied bandwidth over the data sheet's. Few layers lie at 0.3 to 0.4; below are
kernels that time something else than reading weights."""

MAX_MISFIT = 0.3
"""Standard deviation of rows about a fit that did not see them. Up to this, twice as
much covers 96 % or more of the rows of other routings."""

MISLABELLED, MIN_AS_BF16 = 0.3, 0.6
MAX_ATTENTION_SHARE = 0.10
MAX_DIP = 0.05
MIN_ROUTINGS = 4


def expert_gates(experts: ExpertRows) -> Iterator[Gate]:
    """Gates on the experts' rows. The first is needed by the rest.

    Rows of other routings are gated only without group-limited routing, which changes
    the sampler's choice.
    """
    dtype, nearest = experts.pair.dtype, experts.nearest
    needed = (
        "two usable layers of the kernel are needed"
        if nearest
        else "three unions and a plateau are needed: this shard fits into the L2 cache "
        "or has too few experts, and too few layers near by are usable"
    )
    yield _gate("identified union", experts.identified, experts.origin, f"; {needed}")
    if not experts.identified:
        return
    yield slope_gate(experts)
    share = experts.bandwidth_share
    as_bf16 = share * BYTES_PER_VALUE[BF16] / BYTES_PER_VALUE[dtype]
    yield _gate(
        "bytes of the label",
        share >= MISLABELLED or not MIN_AS_BF16 <= as_bf16 <= 1.0,
        f"labelled {dtype}",
        f", but as bf16 weights were read it would be {as_bf16:.2f} of peak",
    )
    for name, errors in _unseen(experts).items():
        yield _misfit_gate(name, errors)


def misfit(experts: ExpertRows) -> float:
    """Standard deviation of unseen rows beyond that of rows whose tables were compared.

    0 for a layer whose own rows keep to the errors that measured tables are allowed.
    """
    unseen = _unseen(experts).values()
    if not experts.nearest and all(is_good(_summary(each)) for each in unseen):
        return 0.0
    return max(map(_deviation, unseen))


def _unseen(experts: ExpertRows) -> dict[str, Floats]:
    """Relative errors of rows that the fit did not see."""
    found = {"held-out rows": experts.held_out()}
    if experts.pair.router.groups == 1 and len(experts.routings) >= MIN_ROUTINGS:
        found["rows of other routings"] = experts.off_diagonal()
    return found


def _deviation(errors: Floats) -> float:
    return float(np.sqrt(np.square(errors).mean()))


def _summary(errors: Floats) -> ErrorSummary:
    return summarise_errors(1.0 + errors, np.ones(len(errors)))


def slope_gate(experts: ExpertRows) -> Gate:
    """The slope in U is the time to read one expert's weights."""
    low, high = SLOPE_RANGE
    share = experts.bandwidth_share
    why = (
        "more than memory gives: fewer experts ran than the union says"
        if share > high
        else "something else than reading weights was timed"
    )
    passed = low <= share <= high
    # As many digits as it takes not to round to the other side of a bound.
    digits = next(n for n in count(2) if (low <= round(share, n) <= high) == passed)
    says = f"an expert implies {share:.{digits}f} of peak bandwidth"
    return _gate("slope", passed, says, f", outside {low}..{high}: {why}")


def part_gates(bounds: Sequence[Interval], dips: Floats) -> Iterator[Gate]:
    """`bounds` are of steps of the whole model; `dips`, `monotonicity_violations`."""
    worst = max(max(b.us - b.low, b.high - b.us) / b.us for b in bounds)
    yield _gate(
        "attention interval",
        worst <= MAX_ATTENTION_SHARE,
        f"its bounds move a step at batch 1 by up to {worst:.1%}",
        f"; above {MAX_ATTENTION_SHARE:.0%} its rows leave a tree's time too open",
    )
    dip = float(dips.max(initial=0.0))
    says = f"no cell is cheaper than a narrower one by more than {dip:.1%}"
    yield _gate("monotone", dip <= MAX_DIP, says, "; rows contradict")


def _misfit_gate(name: str, errors: Floats) -> Gate:
    deviation = _deviation(errors)
    says = f"{_summary(errors)}, one standard deviation {deviation:.1%}"
    why = f"; allowed are {MAX_MISFIT:.0%}: time follows more than union and tokens"
    return _gate(name, deviation <= MAX_MISFIT, says, why)


def _gate(name: str, passed: bool, says: str, why: str) -> Gate:
    """`why` is appended if the gate failed."""
    return Gate(name, passed, says if passed else says + why)

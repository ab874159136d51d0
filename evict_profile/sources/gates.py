"""Gates on public rows: whether they can cost an engine.

They find benchmarks that keep weights in the cache, kernels without tuning, and wrong
labels, by the rows' own numbers.
"""

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from evict_profile.fit.gates import MAX_MEDIAN_ERROR, MAX_P90_ERROR, is_good
from evict_profile.sources.curves import Interval
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.pairs import BYTES_PER_VALUE
from evict_profile.sources.rows import BF16
from evict_profile.stats import Floats, summarise_errors
from evict_profile.table import Gate

SLOPE_RANGE = (0.6, 1.15)
"""Implied bandwidth over the data sheet's."""

MISLABELLED = 0.3
MAX_ATTENTION_SHARE = 0.10
MAX_DIP = 0.05
MIN_ROUTINGS = 4


def expert_gates(experts: ExpertRows) -> Iterator[Gate]:
    """Gates on the experts' rows. The first is needed by the rest.

    Rows of other routings are gated only without group-limited routing, which changes
    the sampler's choice.
    """
    cold, rows, dtype = experts.cold, experts.balanced, experts.pair.dtype
    unions = sorted({int(union) for union in cold["union"]})
    yield _gate(
        "identified union",
        experts.identified,
        f"{len(cold)} of {len(rows)} rows were read from memory, unions {unions}",
        "; three unions and a plateau are needed: this shard fits into the L2 cache or "
        "has too few experts",
    )
    if not experts.identified:
        return
    yield slope_gate(experts)
    share = experts.bandwidth_share
    as_bf16 = share * BYTES_PER_VALUE[BF16] / BYTES_PER_VALUE[dtype]
    yield _gate(
        "bytes of the label",
        share >= MISLABELLED or not SLOPE_RANGE[0] <= as_bf16 <= 1.0,
        f"labelled {dtype}",
        f", but as bf16 weights were read it would be {as_bf16:.2f} of peak",
    )
    yield _error_gate("held-out rows", experts.held_out())
    if experts.pair.router.groups == 1 and len(experts.routings) >= MIN_ROUTINGS:
        yield _error_gate("rows of other routings", experts.off_diagonal())


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
        f"; above {MAX_ATTENTION_SHARE:.0%} choose smaller --contexts",
    )
    dip = float(dips.max(initial=0.0))
    says = f"no cell is cheaper than a narrower one by more than {dip:.1%}"
    yield _gate("monotone", dip <= MAX_DIP, says, "; rows contradict")


def _error_gate(name: str, errors: Floats) -> Gate:
    error = summarise_errors(1.0 + errors, np.ones(len(errors)))
    allowed = f"median {MAX_MEDIAN_ERROR:.0%} and p90 {MAX_P90_ERROR:.0%}"
    why = f"; allowed are {allowed}: its time follows more than union and tokens"
    return _gate(name, is_good(error), str(error), why)


def _gate(name: str, passed: bool, says: str, why: str) -> Gate:
    """`why` is appended if the gate failed."""
    return Gate(name, passed, says if passed else says + why)

"""Settings that know no cost, each tuned in hindsight on the trace that is replayed."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from evict_profile.replay.comparison import FixedPoint, fastest
from evict_profile.replay.policies import (
    BEST_PAIR,
    BEST_WIDTH,
    PAIR_CONDITIONAL,
    THRESHOLD,
    Fixed,
    Schedule,
    Threshold,
    full_tree,
    plain_decoding,
)
from evict_profile.table import ConditionalAcceptance

THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Tried first; then `FINER` between the neighbours of the best."""
FINER = 7
WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fixed widths tried first; then all between the neighbours of the best."""

Tried = Fixed | Threshold
Tuned = Tried | Schedule
Rate = Callable[[Tried], float]


def fixed_points(rate: Rate, nodes: int, deepest: int) -> list[FixedPoint]:

    def point(depth: int, width: int) -> FixedPoint:
        return FixedPoint(depth, width, rate(Fixed("", depth, width)))

    most = nodes + 1
    coarse = [*(width for width in WIDTHS if width < most), most]
    depths = range(1, deepest + 1)
    tried = {(d, w): point(d, w) for d in depths for w in coarse}
    best = fastest([*tried.values()])
    best_width = fastest([tried[deepest, w] for w in coarse])
    for near in (best, best_width):
        for width in _between_neighbours(coarse, near.width):
            at = (near.depth, width)
            tried[at] = tried.get(at) or point(*at)
    return [tried[at] for at in sorted(tried)]


def candidates(
    rate: Rate,
    points: Sequence[FixedPoint],
    nodes: int,
    conditional: ConditionalAcceptance | None,
) -> Iterator[Sequence[Tried]]:
    pairs = [(point.depth, point.width) for point in points]
    deepest = max(depth for depth, _ in pairs)
    yield [plain_decoding()]
    yield [full_tree(nodes, deepest)]
    yield [Fixed(BEST_WIDTH, d, width) for d, width in pairs if d == deepest]
    yield [Fixed(BEST_PAIR, depth, width) for depth, width in pairs]
    yield _thresholds(rate, deepest)
    if conditional:
        yield [
            Fixed(PAIR_CONDITIONAL, depth, width, conditional)
            for depth in range(1, deepest + 1)
            for width in WIDTHS
            if width <= nodes
        ]


def _thresholds(rate: Rate, depth: int) -> list[Threshold]:
    def tried(values: Iterable[float]) -> list[Threshold]:
        return [Threshold(THRESHOLD, depth, least) for least in values]

    coarse = tried(THRESHOLDS)
    at = int(np.argmax([rate(each) for each in coarse]))
    ends = THRESHOLDS[max(at - 1, 0)], THRESHOLDS[min(at + 1, len(THRESHOLDS) - 1)]
    return coarse + tried(np.geomspace(*ends, FINER + 2)[1:-1].round(3).tolist())


def _between_neighbours(widths: Sequence[int], best: int) -> range:
    at, last = widths.index(best), len(widths) - 1
    return range(widths[max(at - 1, 0)] + 1, widths[min(at + 1, last)])

"""Settings that know no cost, each tuned in hindsight on the trace that is replayed."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from evict_profile.acceptance import ConditionalAcceptance
from evict_profile.replay.comparison import FixedPoint, fastest
from evict_profile.replay.policies import (
    BEST_PAIR,
    BEST_WIDTH,
    PAIR_CONDITIONAL,
    Fixed,
    Schedule,
    full_tree,
    plain_decoding,
)

WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fixed widths tried first; then all between the neighbours of the best."""

Tuned = Fixed | Schedule
Rate = Callable[[Fixed], float]


def fixed_points(rate: Rate, nodes: int, deepest: int, topk: int) -> list[FixedPoint]:
    """Of widths that trees of each depth have: d + 1 at most of a chain."""
    tried = dict[tuple[int, int], FixedPoint]()

    def attempt(depth: int, width: int) -> None:
        at = depth, min(width, 1 + topk + (depth - 1) * topk**2)
        if at not in tried:
            tried[at] = FixedPoint(*at, rate(Fixed("", *at)))

    most = nodes + 1
    coarse = [*(width for width in WIDTHS if width < most), most]
    for depth, width in product(range(1, deepest + 1), coarse):
        attempt(depth, width)
    best = fastest([*tried.values()])
    best_width = fastest([p for p in tried.values() if p.depth == deepest])
    for near in (best, best_width):
        for width in _between_neighbours(coarse, near.width):
            attempt(near.depth, width)
    return [tried[at] for at in sorted(tried)]


def candidates(
    points: Sequence[FixedPoint],
    nodes: int,
    conditional: ConditionalAcceptance | None,
) -> Iterator[Sequence[Fixed]]:
    pairs = [(point.depth, point.width) for point in points]
    deepest = max(depth for depth, _ in pairs)
    yield [plain_decoding()]
    yield [full_tree(nodes, deepest)]
    yield [Fixed(BEST_WIDTH, d, width) for d, width in pairs if d == deepest]
    yield [Fixed(BEST_PAIR, depth, width) for depth, width in pairs]
    if conditional:
        yield [
            Fixed(PAIR_CONDITIONAL, depth, width, conditional)
            for depth in range(1, deepest + 1)
            for width in WIDTHS
            if width <= nodes
        ]


def _between_neighbours(widths: Sequence[int], best: int) -> range:
    below = max((width for width in widths if width < best), default=best - 1)
    return range(below + 1, min((w for w in widths if w > best), default=best))

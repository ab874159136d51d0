"""All policies on one trace and one table: who is fastest, and how sure is that?

The baselines that matter are fixed: the best width at full depth, and the best pair of
depth and width, both chosen in hindsight on the very trace that is replayed. A server
that tunes two numbers by hand gets that far without reading a score, so only what a
policy earns beyond them is due to adapting.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from evict_profile.replay.cell import (
    BASELINES,
    MIXED,
    Cell,
    Place,
    Standing,
    WidthPoint,
)
from evict_profile.replay.ground import Ground
from evict_profile.replay.guided import guided
from evict_profile.replay.oracle import oracle_run
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    FULL_TREE,
    ORACLE,
    PAIR_LINKS,
    SERVED_TREE,
    THRESHOLD,
    Fixed,
    MakePolicy,
    Policy,
    Threshold,
    full_tree,
    plain_decoding,
)
from evict_profile.replay.prices import Prices
from evict_profile.replay.walk import Run, account, mean, tokens_per_s, walk
from evict_profile.runtime import CostTable
from evict_profile.runtime.links import LinkCurves
from evict_profile.stats import Bootstrap, Estimate, Floats
from evict_profile.traces import Trace

SERVED_TOKENS = 32
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.4)
WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Fixed widths tried first; then all between the neighbours of the best."""

Progress = Callable[[str], None]


def parts(trace: Trace) -> Iterator[tuple[Trace, str, float]]:
    """Parts of a trace that are replayed apart, the mix last."""
    for temperature in trace.temperatures:
        whole = trace.only(temperature=temperature)
        for workload in whole.workloads:
            yield whole.only(workload=workload), workload, temperature
        if len(whole.workloads) > 1:
            yield whole, MIXED, temperature


class Contest:
    """One cell while it is being decided."""

    def __init__(
        self,
        ground: Ground,
        table: CostTable,
        place: Place,
        seeds: int,
        speed: float = 1.0,
    ) -> None:
        """Prepare a cell.

        Args:
            ground: the part of the trace that is replayed.
            table: prices it, and guides policies.
            place: what the cell is of.
            seeds: orders of replies that every policy is walked in.
            speed: of the table's machine over the recorder's, as `Prices` takes it.
        """
        self.ground = ground
        self.table = table
        self.place = place
        self.seeds = seeds
        self.prices = Prices(table, ground, place.batch, speed)
        self.bootstrap = Bootstrap(len(ground.prompts), seeds)

    def cell(self) -> Cell:
        """Tune what can be tuned, then walk everything with every seed."""
        ground, points = self.ground, self.tune()
        deepest = [point for point in points if point.depth == ground.depth]
        width, pair = (max(found, key=_speed) for found in (deepest, points))
        makers: dict[str, tuple[str, MakePolicy]] = {
            AR: ("", plain_decoding),
            FULL_TREE: ("", lambda: full_tree(ground.nodes, ground.depth)),
            **self._served_tree(),
            BEST_WIDTH: _fixed(BEST_WIDTH, width),
            BEST_PAIR: _fixed(BEST_PAIR, pair),
            THRESHOLD: self._threshold(),
        }
        if self.links:
            makers[PAIR_LINKS] = self.linked_pair()
        for name, make in guided(self.table, ground.depth).items():
            makers[name] = ("", make)
        sums = {name: self.sums(make) for name, (_, make) in makers.items()}
        sums[ORACLE] = self._summed(self.oracle())
        settings = {name: setting for name, (setting, _) in makers.items()}
        return Cell(
            self.place,
            len(ground.prompts),
            ground.tokens,
            tuple(self._standing(name, settings.get(name, ""), sums) for name in sums),
            pair,
            width,
            tuple(points),
            self.prices.marks,
        )

    def sums(self, make: MakePolicy) -> Floats:
        """What a policy did, summed for each resample."""
        if self._in_any_order and isinstance(make(), Fixed | Threshold):
            return self._summed([self.walk(make(), 0)] * self.seeds)
        return self._summed([self.walk(make(), seed) for seed in range(self.seeds)])

    @property
    def _in_any_order(self) -> bool:
        """Whether a policy that learns nothing does the same in every order."""
        return self.place.batch == 1 and self.ground.trace.dense

    def walk(self, policy: Policy, seed: int) -> Run:
        """One run of a fresh policy."""
        return walk(self.ground, policy, self.prices, self.place.batch, seed)

    def oracle(self) -> list[Run]:
        """The oracle's runs."""
        where = (self.ground, self.prices, self.place.batch)
        if self._in_any_order:
            return [oracle_run(*where, 0)] * self.seeds
        return [oracle_run(*where, seed) for seed in range(self.seeds)]

    def tune(self) -> list[WidthPoint]:
        """Throughput by fixed depth and width, in the first order of replies.

        Some widths at every depth, then all near the best pair and the best width.
        """
        most, deepest = self.ground.nodes + 1, self.ground.depth
        coarse = [*(width for width in WIDTHS if width < most), most]
        depths = range(1, deepest + 1)
        tried = {(d, w): self._fixed(d, w) for d in depths for w in coarse}
        best = max(tried.values(), key=_speed)
        best_width = max((tried[deepest, w] for w in coarse), key=_speed)
        for point in (best, best_width):
            for width in _near(coarse, point.width):
                place = (point.depth, width)
                tried[place] = tried.get(place) or self._fixed(*place)
        return [tried[place] for place in sorted(tried)]

    def _fixed(self, depth: int, width: int) -> WidthPoint:
        run = self.walk(Fixed("", depth, width), 0)
        return WidthPoint(depth, width, run.tokens_per_s)

    def _served_tree(self) -> dict[str, tuple[str, MakePolicy]]:
        """The tree of 32 tokens, where trees are larger."""
        if self.ground.nodes < SERVED_TOKENS:
            return {}
        tree = Fixed(SERVED_TREE, self.ground.depth, SERVED_TOKENS)
        return {SERVED_TREE: ("", lambda: tree)}

    @property
    def links(self) -> LinkCurves | None:
        """The table's links, if it has them."""
        known = self.table.acceptance
        return known.links if known else None

    def linked_pair(self) -> tuple[str, MakePolicy]:
        """The best fixed pair when nodes are ranked by links."""
        widths = [width for width in WIDTHS if width <= self.ground.nodes]
        tried = [
            Fixed(PAIR_LINKS, depth, width, self.links)
            for depth in range(1, self.ground.depth + 1)
            for width in widths
        ]
        best = max(tried, key=lambda policy: self.walk(policy, 0).tokens_per_s)
        return f"{best.width} tokens at depth {best.depth}", lambda: best

    def _threshold(self) -> tuple[str, MakePolicy]:
        depth = self.ground.depth
        found = [Threshold(THRESHOLD, depth, least) for least in THRESHOLDS]
        best = max(found, key=lambda policy: self.walk(policy, 0).tokens_per_s)
        return f"{best.least:g}", lambda: best

    def _summed(self, runs: Sequence[Run]) -> Floats:
        return self.bootstrap.sums(account(self.ground, list(runs)))

    def _standing(
        self, name: str, setting: str, sums: Mapping[str, Floats]
    ) -> Standing:
        own, estimate = sums[name], self.bootstrap.estimate

        def means(sums: Floats, column: str) -> Estimate:
            return estimate(mean(sums, column))

        over = {
            baseline: estimate(tokens_per_s(own) / tokens_per_s(sums[baseline]))
            for baseline in BASELINES
        }
        return Standing(
            policy=name,
            setting=setting,
            tokens_per_s=estimate(tokens_per_s(own)),
            over=over,
            committed=means(own, "tokens"),
            verified=means(own, "verified"),
            depth=means(own, "depth"),
            union=means(own, "union"),
            step_us=means(own, "step_us"),
            verify_us=means(own, "verify_us"),
            draft_us=means(own, "draft_us"),
            fixed_us=means(own, "fixed_us"),
        )


def _fixed(name: str, point: WidthPoint) -> tuple[str, MakePolicy]:
    setting = f"{point.width} tokens at depth {point.depth}"
    return setting, lambda: Fixed(name, point.depth, point.width)


def _near(widths: Sequence[int], best: int) -> range:
    """All widths between the neighbours of one of them."""
    at = widths.index(best)
    last = len(widths) - 1
    return range(widths[max(at - 1, 0)] + 1, widths[min(at + 1, last)])


def _speed(point: WidthPoint) -> float:
    return point.tokens_per_s

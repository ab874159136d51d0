"""The time of drafting by level, from a trace that has only that of all levels.

SGLang drafts all levels as one graph, so its traces book them on the first.
"""

import numpy as np

from evict_profile.drafting import DraftClock, Drafting
from evict_profile.records import replace

BY_SWEEP = "; by level, at other batches and beside drafting as timed in the table"
EVENLY = "; known only as a whole, which was divided evenly over the levels"


def by_level(seen: Drafting, own: Drafting | None) -> Drafting:
    """A trace's drafting, with levels as those of the table's `own` if it has some.

    The table's clocks stay but for the levels, whose times are scaled to the whole of
    the trace.
    """
    if not any(map(_is_whole, seen.batches)):
        return seen
    if own is None or any(_is_whole(c) or not c.draft_us[-1] for c in own.batches):
        clocks = map(_evenly, seen.batches)
        return Drafting(seen.workload + EVENLY, seen.engine, tuple(clocks))
    kept = {clock.batch: clock for clock in own.batches}
    kept |= {c.batch: _scaled(own.at(c.batch), c) for c in seen.batches}
    clocks = (kept[batch] for batch in sorted(kept))
    return Drafting(seen.workload + BY_SWEEP, seen.engine, tuple(clocks))


def _is_whole(clock: DraftClock) -> bool:
    return clock.max_depth > 1 and clock.draft_us[1] == clock.draft_us[-1]


def _evenly(clock: DraftClock) -> DraftClock:
    levels_us = np.linspace(0.0, clock.draft_us[-1], clock.max_depth + 1)
    return replace(clock, draft_us=tuple(levels_us.round(1).tolist()))


def _scaled(own: DraftClock, seen: DraftClock) -> DraftClock:
    """Rounds of another batch than the trace's are left out."""
    factor = seen.draft_us[-1] / own.drafted_us(seen.max_depth)
    depths = range(max(own.max_depth, seen.max_depth) + 1)
    levels_us = tuple(round(factor * own.drafted_us(depth), 1) for depth in depths)
    rounds = own.rounds if own.batch == seen.batch else ()
    return replace(own, batch=seen.batch, draft_us=levels_us, rounds=rounds)

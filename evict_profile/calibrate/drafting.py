"""Drafting by level, from a trace that knows the time of all levels alone: SGLang
drafts them as one graph."""

from evict_profile.drafting import DraftClock, Drafting
from evict_profile.records import replace

BY_TABLE = "; by level, at other batches and beside drafting as timed in the table"
EVENLY = "; known only as a whole, which was divided evenly over the levels"


def by_level(seen: Drafting, own: Drafting | None) -> Drafting:
    """The clocks of the table's `own`, whose levels are scaled to a trace's whole.

    Where they have no levels, those of the trace are equal.
    """
    if not any(map(_is_whole, seen.batches)):
        return seen
    how = BY_TABLE
    if own is None or any(_is_whole(c) or not c.draft_us[-1] for c in own.batches):
        even = (replace(clock, draft_us=(0.0, 1.0)) for clock in seen.batches)
        own, how = replace(seen, batches=tuple(even)), EVENLY
    clocks = {clock.batch: clock for clock in own.batches}
    clocks |= {c.batch: _scaled(own.at(c.batch), c) for c in seen.batches}
    kept = tuple(clocks[batch] for batch in sorted(clocks))
    return Drafting(seen.workload + how, seen.engine, kept)


def _is_whole(clock: DraftClock) -> bool:
    return clock.max_depth > 1 and clock.draft_us[1] == clock.draft_us[-1]


def _scaled(own: DraftClock, seen: DraftClock) -> DraftClock:
    """Rounds of another batch than the trace's are left out."""
    factor = seen.draft_us[-1] / own.drafted_us(seen.max_depth)
    depths = range(max(own.max_depth, seen.max_depth) + 1)
    levels_us = tuple(round(factor * own.drafted_us(depth), 1) for depth in depths)
    rounds = own.rounds if own.batch == seen.batch else ()
    return replace(own, batch=seen.batch, draft_us=levels_us, rounds=rounds)

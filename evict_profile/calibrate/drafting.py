"""The engine's own clock of drafting, as a table holds it."""

from evict_profile.table import DraftClock, Drafting
from evict_profile.traces import Trace


def drafting_of(trace: Trace, workload: str) -> Drafting | None:
    """Times of drafting by batch; None where the recorder had no clock."""
    if not trace.clocks:
        return None
    batches = tuple(
        DraftClock(
            clock.batch,
            tuple(round(us, 1) for us in clock.draft_us),
            round(clock.fixed_us, 1),
            round(clock.plain_fixed_us, 1),
        )
        for clock in sorted(trace.clocks, key=lambda clock: clock.batch)
    )
    engine = f"{trace.about.engine or 'unnamed'} {trace.about.engine_version}".strip()
    return Drafting(workload=workload, engine=engine, batches=batches)

"""The engine's own clock of drafting, as a table holds it."""

from evict_profile.table import CostTable
from evict_profile.traces import About, Trace
from evict_profile.workload import DraftClock, Drafting


def speed_over(about: About, table: CostTable) -> float:
    """What brings a recording's clocks to the speed at which the table was measured.

    1 where one of them has no reference, or not the same: other engines' tell nothing.
    """
    here, there = about.reference_us, table.provenance.reference_us
    same = about.engine == table.key.engine
    return there / here if same and here and there else 1.0


def drafting_of(trace: Trace, workload: str, speed: float) -> Drafting | None:
    """Times of drafting by batch; None where the recorder had no clock.

    `speed` is a factor on all of them, see `speed_over`.
    """
    if not trace.clocks:
        return None
    batches = tuple(
        DraftClock(
            clock.batch,
            tuple(round(speed * us, 1) for us in clock.draft_us),
            round(speed * clock.fixed_us, 1),
            round(speed * clock.plain_fixed_us, 1),
        )
        for clock in sorted(trace.clocks, key=lambda clock: clock.batch)
    )
    engine = f"{trace.about.engine or 'unnamed'} {trace.about.engine_version}".strip()
    return Drafting(workload=workload, engine=engine, batches=batches)

"""The time of drafting that a user gives."""

import numpy as np

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.table import CostTable, DraftClock, Drafting
from evict_profile.table.overheads import LEVELS

MAX_LEVEL_MS = 1_000.0


def drafting_of_level(table: CostTable, level_ms: float) -> Drafting:
    """The time of one level as given, beside what the table has of the rest."""
    if not 0.0 <= level_ms <= MAX_LEVEL_MS:
        raise ConfigError(
            f"--draft-level-ms {level_ms:g} is no time of one level; give "
            f"milliseconds from 0 to {MAX_LEVEL_MS:g}"
        )
    rest = [DraftClock(batch, (0.0,), 0.0, 0.0) for batch in table.axes.batch]
    levels = tuple((1e3 * level_ms * np.arange(LEVELS + 1)).tolist())
    known = table.drafting.batches if table.drafting else rest
    clocks = tuple(replace(clock, draft_us=levels) for clock in known)
    said = f"given, {level_ms:g} ms a level at every batch"
    return Drafting(said, table.key.engine, clocks)

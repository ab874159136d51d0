"""What drafts: its kind decides an engine's flags; a user may give its time."""

from functools import cache
from typing import Any

import numpy as np

from evict_profile.drafting import DraftClock, Drafting
from evict_profile.errors import ConfigError
from evict_profile.io import data_root
from evict_profile.records import read_mapping, replace
from evict_profile.served.table import ServedTable
from evict_profile.table import CostTable

MAX_LEVEL_MS = 1_000.0
LEVELS = 32
"""Drafted levels in a clock; deeper ones take as long as the last."""

OWN = ("eagle3", "mtp")
"""Kinds whose time a table may assume: a layer of the target and its head."""

AT_ONCE = ("pard", "dflash")
"""Kinds that draft all levels in one forward."""

AS_SERVED = "as_served"


@cache
def drafters() -> dict[str, Any]:
    """By kind: its name in each engine, and who may change its length by batch."""
    return read_mapping(data_root() / "configs" / "draft_methods.yaml")


def has_schedules(engine: str, kind: str) -> bool:
    """Whether an engine changes the length of a kind by batch; of others, yes."""
    known = drafters()
    runs = any(engine in row for row in known.values())
    return engine in known[kind]["schedules"] or not runs


def drafter_of(asked: str | None, table: CostTable | ServedTable | None) -> str:
    """The kind that drafts; by default the server's, or the model's own."""
    if asked is None and isinstance(table, CostTable):
        return "mtp" if table.model.mtp_layers else "eagle3"
    kind = asked or AS_SERVED
    if kind in drafters():
        return kind
    raise ConfigError(f"--drafter {kind}: choose one of {', '.join(drafters())}")


def drafting_of_level(table: CostTable, level_ms: float, kind: str) -> Drafting:
    """The time of a forward as given, beside what the table has of the rest."""
    if not 0.0 <= level_ms <= MAX_LEVEL_MS:
        raise ConfigError(
            f"--draft-level-ms {level_ms:g} is no time of one level; give "
            f"milliseconds from 0 to {MAX_LEVEL_MS:g}"
        )
    rest = [DraftClock(batch, (0.0,), 0.0, 0.0) for batch in table.axes.batch]
    forwards = np.arange(LEVELS + 1.0)
    if kind in AT_ONCE:
        forwards = np.minimum(forwards, 1.0)
    levels = tuple((1e3 * level_ms * forwards).tolist())
    known = table.drafting.batches if table.drafting else rest
    clocks = tuple(replace(clock, draft_us=levels) for clock in known)
    said = f"given, {level_ms:g} ms a forward at every batch"
    return Drafting(said, table.key.engine, clocks)

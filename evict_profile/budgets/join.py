"""Recordings of other rules behind the same prompts, as one.

A recording of many rules takes hours on one core; several at once, each of some rules,
take less. All decoded the prompts without a budget, which is kept once. Each told its
times by its own reference; here they are told by the first one's.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evict_profile.budgets.schema import KEY
from evict_profile.errors import TraceError
from evict_profile.signed import differences

OWN = ("rules", "budgets", "reference_us")
"""In what recordings that are joined may differ."""

Notes = dict[str, Any]
Part = tuple[str, pa.Table]
"""Where a table is from, and the table."""


def joined(parts: Sequence[Part]) -> pa.Table:
    """One table, whose metadata has the settings of all.

    Raises:
        TraceError: they are of other prompts, trees, worlds or devices; what differs is
            named.
    """
    (first, table), *others = parts
    notes = _notes(table)
    tables, settings = [table], list(notes["settings"])
    for source, other in others:
        own = _notes(other)
        _require_same(notes, first, own, source)
        known = {_name(each) for each in settings}
        fresh = [each for each in own["settings"] if _name(each) not in known]
        speed = _speed(notes, own)
        settings += [{**s, "routing_us": speed * s["routing_us"]} for s in fresh]
        notes["learnt"] = {**own["learnt"], **notes["learnt"]}
        tables.append(_rows_of(other, fresh))
    text = json.dumps({**notes, "settings": settings}, sort_keys=True)
    rows = [each.replace_schema_metadata(None) for each in tables]
    return pa.concat_tables(rows).replace_schema_metadata({KEY: text.encode()})


def _notes(table: pa.Table) -> Notes:
    found: Notes = json.loads(table.schema.metadata[KEY])
    return found


def _name(setting: Notes) -> tuple[str, int]:
    return setting["rule"], setting["budget"]


def _speed(notes: Notes, own: Notes) -> float:
    """What brings one's times to the other's; 1 where a recorder had no reference."""
    first_us, own_us = (each["about"]["reference_us"] for each in (notes, own))
    return float(first_us / own_us) if first_us and own_us else 1.0


def _require_same(notes: Notes, first: str, own: Notes, source: str) -> None:
    ours, theirs = (
        {name: fact for name, fact in each["recorded"].items() if name not in OWN}
        for each in (notes, own)
    )
    if reasons := differences(theirs, ours):
        raise TraceError(
            f"{source}: is not of the prompts of {first} ({'; '.join(reasons)}); give "
            "recordings that differ in rules and budgets alone"
        )


def _rows_of(table: pa.Table, settings: Sequence[Notes]) -> pa.Table:
    """The steps of some settings."""
    kept = pa.array([False] * len(table))
    for rule, budget in map(_name, settings):
        own = pc.and_(pc.equal(table["rule"], rule), pc.equal(table["budget"], budget))
        kept = pc.or_(kept, own)
    return table.filter(kept)

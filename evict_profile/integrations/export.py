"""What an exported file is: fields that a system loads, and a note on what they lost.

SGLang's decoder ignores fields it does not know and vLLM has no file format at all,
so key, samples' hash and note travel inside the file, under `evict_profile`. No system
reads them: they are for the person who finds the file a year later.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evict_profile.integrations.by_tokens import TokenCurve
from evict_profile.table import CostTable, Staircase


@dataclass(frozen=True)
class Export:
    """A document in a system's format.

    Attributes:
        fields: what the system loads.
        notes: what this format lost of this table, one sentence each.
    """

    fields: Mapping[str, Any]
    notes: tuple[str, ...]


def as_text(export: Export, table: CostTable, context: int) -> str:
    """The file: one field a line, and where it came from."""
    origin = {
        "key": asdict(table.key),
        "table_version": table.version,
        "samples_sha256": table.provenance.samples_sha256,
        "context": context,
        "note": export.notes,
    }
    lines = [
        f'"{name}": {json.dumps(value, ensure_ascii=False)}'
        for name, value in {**export.fields, "evict_profile": origin}.items()
    ]
    return "{" + ",\n ".join(lines) + "}\n"


def lost_by_all(
    table: CostTable, staircases: Sequence[Staircase], system: str
) -> tuple[str, ...]:
    """The sentences that hold for every format."""
    key, context = table.key, staircases[0].context
    growth = "a guess" if table.union_growth.is_guess else table.union_growth.workload
    return (
        *_other_engine(table, system),
        f"Priced at context {context} alone, and at one union for each token count "
        f"(union growth: {growth}); the 90 % interval, up to "
        f"±{_widest(staircases):.1%} of a price, is not in the numbers.",
        f"{system} does not check that it serves what was measured: {key.model} "
        f"({key.dtype}) on {key.gpu}, {key.engine} {key.engine_version}, "
        f"{key.moe_backend}, {key.graph_mode}.",
    )


def lost_by_tokens(curve: TokenCurve) -> tuple[str, ...]:
    """What a price by tokens alone loses; empty where one batch was measured."""
    if not curve.apart:
        return ()
    return (
        "The batch is lost: each token count has the price of the smallest batch "
        f"measured with it, and other batches cost up to {curve.apart:.1%} else.",
    )


def no_draft(draft_ms: float | None) -> tuple[str, ...]:
    """What a step without its draft does to the choice; empty where it is in."""
    if draft_ms is not None:
        return (f"Every step has {draft_ms:g} ms of drafting in it, as given.",)
    return (
        "Steps hold verification alone. The scheduler divides by the whole step, so "
        "without the draft's fixed cost it cuts too early: give it with --draft-ms.",
    )


def _other_engine(table: CostTable, system: str) -> tuple[str, ...]:
    if system.lower() in table.key.engine.lower():
        return ()
    return (
        f"Measured with {table.key.engine}, not with {system}, whose prices differ: "
        "use this file to try the format, not to serve.",
    )


def _widest(staircases: Sequence[Staircase]) -> float:
    """Largest distance of an interval's end from its price, relative."""
    return max(
        max(high - cost, cost - low) / cost
        for stairs in staircases
        for cost, low, high in zip(
            stairs.step_cost_us, stairs.low_us, stairs.high_us, strict=True
        )
    )

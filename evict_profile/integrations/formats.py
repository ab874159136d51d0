"""The formats by name: what `evict-profile export TABLE --format` calls."""

from pathlib import Path

from evict_profile.errors import ConfigError
from evict_profile.integrations.by_tokens import staircases_at
from evict_profile.integrations.export import as_text
from evict_profile.integrations.sglang_additive import additive_table
from evict_profile.integrations.sglang_sps import sps_table
from evict_profile.integrations.vllm_curves import cost_curves
from evict_profile.io import write_text
from evict_profile.table import CostTable

MAKERS = {
    "sglang-sps": sps_table,
    "sglang-sps-additive": additive_table,
    "vllm-curves": cost_curves,
}
FORMATS = tuple(MAKERS)

MOST_DRAFT_MS = 60_000.0
"""No drafting step takes a minute: what says so was told in another unit."""


def write_format(
    table: CostTable,
    name: str,
    out: Path,
    context: int | None = None,
    draft_ms: float | None = None,
) -> str:
    """Write a table in a system's format; returns the note on what it lost.

    Args:
        context: a context of the table; its smallest by default.
        draft_ms: time of one drafting step, which the table does not hold.

    Raises:
        ConfigError: no such format, or a draft time that is missing or cannot be.
        TableError: the table does not hold what the format needs.
        StoreError: the file cannot be written.
    """
    if name not in MAKERS:
        raise ConfigError(f"no format '{name}'; choose one of {', '.join(FORMATS)}")
    if draft_ms is not None and not 0.0 < draft_ms <= MOST_DRAFT_MS:
        raise ConfigError(
            f"--draft-ms {draft_ms:g} is no time of a drafting step; give milliseconds "
            f"above 0 and at most {MOST_DRAFT_MS:g}"
        )
    export = MAKERS[name](table, context, draft_ms)
    text = as_text(export, table, staircases_at(table, context)[0].context)
    write_text(text, out)
    return "\n".join(export.notes)

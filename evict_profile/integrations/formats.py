"""The formats by name: what `evict-profile export TABLE --format` calls."""

from pathlib import Path

from evict_profile.errors import ConfigError
from evict_profile.files import make_folder, write_atomically
from evict_profile.integrations.by_tokens import staircases_at
from evict_profile.integrations.export import as_text
from evict_profile.integrations.sglang_additive import additive_table
from evict_profile.integrations.sglang_sps import sps_table
from evict_profile.integrations.vllm_curves import cost_curves
from evict_profile.table import CostTable

MAKERS = {
    "sglang-sps": sps_table,
    "sglang-sps-additive": additive_table,
    "vllm-curves": cost_curves,
}
FORMATS = tuple(MAKERS)


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
        ConfigError: no such format, or a draft time that is missing or not positive.
        TableError: the table does not hold what the format needs.
        StoreError: the file cannot be written.
    """
    if name not in MAKERS:
        raise ConfigError(f"no format '{name}'; choose one of {', '.join(FORMATS)}")
    if draft_ms is not None and not 0.0 < draft_ms < float("inf"):
        raise ConfigError(
            f"--draft-ms {draft_ms:g} is no time; give milliseconds above 0"
        )
    export = MAKERS[name](table, context, draft_ms)
    text = as_text(export, table, staircases_at(table, context)[0].context)
    make_folder(out.parent)
    write_atomically(out, lambda path: path.write_text(text, encoding="utf-8"))
    return "\n".join(export.notes)

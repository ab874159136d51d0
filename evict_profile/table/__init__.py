"""The cost table: what it holds, how it is read and written, how it is found."""

from evict_profile.table.activation import ActivationCurve, BatchActivation
from evict_profile.table.cost_table import OUTSIDES, CostTable, Outside
from evict_profile.table.document import files_of, slug, version_of
from evict_profile.table.key import COMPOSED, Key
from evict_profile.table.parts import (
    AXES,
    Axes,
    Fit,
    Gate,
    Staircase,
    StepCosts,
    TermCost,
)
from evict_profile.table.provenance import (
    DATASHEET,
    MEASURED,
    Composition,
    CompositionError,
    Provenance,
    Sessions,
    measured,
)
from evict_profile.table.search import (
    SEARCH_PATH,
    Found,
    by_name,
    find_table,
    search_path,
    tables_below,
    tables_in,
)

__all__ = [
    "AXES",
    "COMPOSED",
    "DATASHEET",
    "MEASURED",
    "OUTSIDES",
    "SEARCH_PATH",
    "ActivationCurve",
    "Axes",
    "BatchActivation",
    "Composition",
    "CompositionError",
    "CostTable",
    "Fit",
    "Found",
    "Gate",
    "Key",
    "Outside",
    "Provenance",
    "Sessions",
    "Staircase",
    "StepCosts",
    "TermCost",
    "by_name",
    "files_of",
    "find_table",
    "measured",
    "search_path",
    "slug",
    "tables_below",
    "tables_in",
    "version_of",
]

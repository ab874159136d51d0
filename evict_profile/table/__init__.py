"""The cost table: what it holds, how it is read and written, how it is found."""

from evict_profile.table.cost_table import OUTSIDES, CostTable, Outside
from evict_profile.table.document import SCHEMA, files_of, slug, version_of
from evict_profile.table.key import COMPOSED, Key, Reuse
from evict_profile.table.parts import (
    AXES,
    PLACE,
    Axes,
    Fit,
    Gate,
    MarginalCost,
    Price,
    Slope,
    Staircase,
    TermCost,
)
from evict_profile.table.provenance import (
    Composition,
    CompositionError,
    Origin,
    Precision,
    Provenance,
    measured,
)
from evict_profile.table.search import (
    SEARCH_PATH,
    Found,
    find_table,
    of_device,
    search_path,
    tables_in,
)
from evict_profile.table.workload import (
    Acceptance,
    ActivationCurve,
    BatchActivation,
    CalibrationError,
    ConditionalAcceptance,
    DraftClock,
    Drafting,
)

__all__ = [
    "AXES",
    "COMPOSED",
    "OUTSIDES",
    "PLACE",
    "SCHEMA",
    "SEARCH_PATH",
    "Acceptance",
    "ActivationCurve",
    "Axes",
    "BatchActivation",
    "CalibrationError",
    "Composition",
    "CompositionError",
    "ConditionalAcceptance",
    "CostTable",
    "DraftClock",
    "Drafting",
    "Fit",
    "Found",
    "Gate",
    "Key",
    "MarginalCost",
    "Origin",
    "Outside",
    "Precision",
    "Price",
    "Provenance",
    "Reuse",
    "Slope",
    "Staircase",
    "TermCost",
    "files_of",
    "find_table",
    "measured",
    "of_device",
    "search_path",
    "slug",
    "tables_in",
    "version_of",
]

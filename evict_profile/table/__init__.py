"""The cost table: what it holds, how it is read and written, how it is found."""

from evict_profile.table.cost_table import OUTSIDES, CostTable, Outside
from evict_profile.table.document import SCHEMA, files_of, slug, version_of
from evict_profile.table.find import find_table
from evict_profile.table.parts import (
    AXES,
    COMPOSED,
    PLACE,
    Axes,
    Composition,
    Fit,
    Gate,
    Key,
    MarginalCost,
    Origin,
    Price,
    Provenance,
    Slope,
    Staircase,
    TermCost,
    measured,
)
from evict_profile.table.reuse import Reuse
from evict_profile.table.shelf import Found, of_device, search_path, tables_in
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
    "Acceptance",
    "ActivationCurve",
    "Axes",
    "BatchActivation",
    "CalibrationError",
    "Composition",
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

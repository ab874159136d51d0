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
    Price,
    Provenance,
    Slope,
    Staircase,
    TermCost,
    measured,
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
    "Gate",
    "Key",
    "MarginalCost",
    "Outside",
    "Price",
    "Provenance",
    "Slope",
    "Staircase",
    "TermCost",
    "files_of",
    "find_table",
    "measured",
    "slug",
    "version_of",
]

"""Reading a cost table during decoding, and cutting draft trees to what pays.

Imports torch, numpy, msgspec and the standard library, and of the toolkit only what
lies at the bottom: the table, the cost model under it, and `lossless.rules`.
"""

from evict_profile.runtime.calibration import Calibration
from evict_profile.runtime.plan import Plan
from evict_profile.runtime.staleness import StepWatch
from evict_profile.runtime.step import DecodingStep
from evict_profile.runtime.truncator import Truncator
from evict_profile.runtime.widths import select_widths
from evict_profile.table import (
    ConditionalAcceptance,
    CostTable,
    DraftClock,
    Drafting,
    find_table,
)

__all__ = [
    "Calibration",
    "ConditionalAcceptance",
    "CostTable",
    "DecodingStep",
    "DraftClock",
    "Drafting",
    "Plan",
    "StepWatch",
    "Truncator",
    "find_table",
    "select_widths",
]

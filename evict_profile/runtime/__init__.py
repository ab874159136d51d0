"""Reading a cost table during decoding, and cutting draft trees to what pays.

Imports torch, numpy and the standard library, and of the toolkit only the modules at
the bottom: `errors`, `signed`, `pricing` and `lossless.rules`.
"""

from evict_profile.runtime.calibration import Calibration
from evict_profile.runtime.drafting import DraftClock, Drafting
from evict_profile.runtime.links import LinkCurves
from evict_profile.runtime.lookup import find_table
from evict_profile.runtime.plan import Plan
from evict_profile.runtime.staleness import StepWatch
from evict_profile.runtime.table import CostTable
from evict_profile.runtime.truncator import Truncator
from evict_profile.runtime.widths import select_widths

__all__ = [
    "Calibration",
    "CostTable",
    "DraftClock",
    "Drafting",
    "LinkCurves",
    "Plan",
    "StepWatch",
    "Truncator",
    "find_table",
    "select_widths",
]

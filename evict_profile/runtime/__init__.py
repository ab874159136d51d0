"""Reading a cost table during decoding, and cutting draft trees to what pays."""

from evict_profile.acceptance import ConditionalAcceptance
from evict_profile.drafting import DraftClock, Drafting
from evict_profile.runtime.decision import Plan, select_widths
from evict_profile.runtime.scoring import Calibration
from evict_profile.runtime.staleness import StepWatch
from evict_profile.runtime.truncator import DecodingStep, Truncator
from evict_profile.table import CostTable, find_table

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

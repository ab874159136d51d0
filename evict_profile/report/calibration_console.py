"""A calibration as a terminal shows it."""

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from evict_profile.calibrate.held_out import BEST
from evict_profile.calibrate.study import Study
from evict_profile.config import ModelSpec
from evict_profile.io import say
from evict_profile.report import calibration_prose as prose
from evict_profile.stats import Estimate


def show_study(console: Console, found: Study, model: ModelSpec) -> None:
    """Errors of each calibrator, and a sentence on each other thing found."""
    say(console, found.name)
    console.print(_error_grid(found))
    for sentence in sentences(found, model):
        say(console, sentence)


def sentences(found: Study, model: ModelSpec) -> list[str]:
    """What was found, and what could not be, one sentence each."""
    growths, drafting = found.growths, found.drafting
    return [
        prose.calibration(found),
        prose.restriction(found),
        prose.continuation(found),
        prose.growth(growths, model) if growths else prose.NO_ROUTES,
        prose.drafting(drafting) if drafting else prose.NO_CLOCKS,
        str(found.prices) if found.prices else prose.NO_CHECK,
    ]


def _error_grid(found: Study) -> Grid:
    title = "held-out errors, 95 % intervals over prompts"
    head = ("calibrator", "ECE", f"ECE, best {BEST}", "Brier", "log loss")
    grid = Grid(*head, title=title)
    for name, errors in found.calibrated.errors.items():
        columns = (errors.ece, errors.best_ece, errors.brier, errors.log_loss)
        grid.add_row(name, *map(_short, columns))
    return grid


def _short(estimate: Estimate) -> str:
    if not np.isfinite(estimate.high):
        return f"{estimate.value:.4f}"
    further = max(estimate.high - estimate.value, estimate.value - estimate.low)
    return f"{estimate.value:.4f} ±{further:.4f}"

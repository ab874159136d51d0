"""A front of expert budgets on a terminal and as a drawing."""

from pathlib import Path

import numpy as np
from rich.console import Console

from evict_profile.io import say, write_atomically
from evict_profile.report.console import Rows, print_notes, print_rows
from evict_profile.report.numbers import spread
from evict_profile.report.style import ACCENT, BAD, QUIET, canvas
from examples.small_world.budget_front import BudgetFront
from examples.small_world.engine.budgets import MASS, SQRT_TOP_K

COLOURS = {MASS: BAD, SQRT_TOP_K: ACCENT}
MIN_KL = 1e-4
"""What is smaller is drawn here, at the edge of a log axis."""


def show_front(console: Console, front: BudgetFront) -> None:
    """The advice, and the numbers of every setting."""
    say(console, front.message)
    workloads = ", ".join(front.workloads)
    print_rows(console, _rows(front), f"{workloads}, {front.prompts} prompts")
    print_notes(console, front.caveats)


def _rows(front: BudgetFront) -> Rows:
    return Rows.of(
        front.points,
        {
            "setting": lambda p: p.name,
            "speed x none": lambda p: spread(p.speed),
            "KL, nats": lambda p: spread(p.kl, ".4f"),
            "agreement": lambda p: spread(p.agreement, ".2%"),
            "accept length": lambda p: f"{p.committed.value:.3f}",
            "experts": lambda p: f"{p.union.value:.1f}",
            "step, us": lambda p: f"{p.step_us.value:,.0f}",
            "tokens/s": lambda p: f"{p.tokens_per_s.value:.1f}",
        },
    )


def draw(front: BudgetFront, out: Path) -> None:
    """Speed over no budget against KL as SVG, a line a rule, with intervals."""
    with canvas(9.6, 4.4) as figure:
        axes = figure.subplots()
        for rule, colour in COLOURS.items():
            own = [point for point in front.points if point.rule == rule]
            kl, speed = (
                np.array([(each.value, each.low, each.high) for each in column]).T
                for column in ([p.kl for p in own], [p.speed for p in own])
            )
            ends = [
                np.nan_to_num(np.abs(x[1:] - x[0]), posinf=0.0) for x in (kl, speed)
            ]
            x = np.maximum(kl[0], MIN_KL)
            axes.errorbar(x, speed[0], ends[1], ends[0], "-o", color=colour, label=rule)
            for point, at in zip(own, x, strict=True):
                axes.annotate(f" {point.budget}", (at, point.speed.value))
        axes.axhline(1.0, color=QUIET, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xlabel("KL to the target without a budget, nats a token")
        axes.set_title("speed over no budget, by experts a layer may activate")
        axes.legend()
        write_atomically(out, lambda place: figure.savefig(place, format="svg"))

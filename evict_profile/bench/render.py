"""The comparison as Markdown, for the docs and for a terminal."""

from typing import Any

from evict_profile.bench.contest import (
    BEST_FIXED,
    FULL_TREE,
    ORACLE,
    PAST_RATE,
    RATE,
    RATE_AT_OPTIMUM,
    RATIO,
)

SHOWN = (FULL_TREE, RATIO, PAST_RATE, RATE, RATE_AT_OPTIMUM, ORACLE)
Rows = list[dict[str, Any]]


def markdown(comparison: dict[str, Any], nodes: int) -> str:
    """Throughput over the best fixed width, a line for each mix and shape.

    The best fixed width itself, and the mean width of the runtime's rule, stand in
    the first columns. Intervals are 95 % over seeds.
    """
    rows = [row for row in comparison["rows"] if row["nodes"] == nodes]
    places = dict.fromkeys((row["mix"], row["shape"]) for row in rows)
    lines = [line(("mix", "cost", "best width", "mean width, rate", *SHOWN))]
    lines.append(line(("---", "---") + ("--:",) * (2 + len(SHOWN))))
    for mix, shape in places:
        here = {
            row["policy"]: row
            for row in rows
            if (row["mix"], row["shape"]) == (mix, shape)
        }
        widths = (f"{here[p]['width']:.1f}" for p in (BEST_FIXED, RATE))
        gains = (_gain(here[policy]["over"][BEST_FIXED]) for policy in SHOWN)
        lines.append(line((mix, shape, *widths, *gains)))
    return "\n".join(lines) + "\n"


def line(fields: tuple[str, ...]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(fields) + " |"


def _gain(over: dict[str, float]) -> str:
    """A ratio and half its interval."""
    return f"{over['mean']:.3f} ± {(over['high'] - over['low']) / 2.0:.3f}"

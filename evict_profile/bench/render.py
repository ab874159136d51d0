"""The comparison as Markdown, for the docs and for a terminal."""

from typing import Any

from evict_profile.bench.contest import (
    AR,
    BEST_FIXED,
    FULL_TREE,
    ORACLE,
    PAST_RATE,
    RATE,
    RATE_AT_OPTIMUM,
    RATIO,
)

FLAT = "flat"
"""On a flat cost every rule verifies everything, and there is nothing to compare."""
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


def summary(comparison: dict[str, Any], nodes: int) -> str:
    """Throughput over the best fixed width, a line for each mix.

    Mean over the shapes of cost but the flat one, the least and most of them in
    brackets. Plain decoding stands with the rest: it drafts nothing.
    """
    rows = [r for r in comparison["rows"] if r["nodes"] == nodes and r["shape"] != FLAT]
    names = (AR, *SHOWN)
    lines = [line(("mix", *names)), line(("---",) + ("--:",) * len(names))]
    for mix in dict.fromkeys(row["mix"] for row in rows):
        own = [row for row in rows if row["mix"] == mix]
        lines.append(line((mix, *(_spread(own, policy) for policy in names))))
    return "\n".join(lines) + "\n"


def _spread(rows: Rows, policy: str) -> str:
    gains = [r["over"][BEST_FIXED]["mean"] for r in rows if r["policy"] == policy]
    return f"{sum(gains) / len(gains):.3f} ({min(gains):.3f}..{max(gains):.3f})"


def line(fields: tuple[str, ...]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(fields) + " |"


def _gain(over: dict[str, float]) -> str:
    """A ratio and half its interval."""
    return f"{over['mean']:.3f} ± {(over['high'] - over['low']) / 2.0:.3f}"

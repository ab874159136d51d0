"""`evict-profile bench`: what is run, on what, and how it reads."""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from evict_profile.bench.compare import compare_shapes
from evict_profile.bench.decision import time_decisions
from evict_profile.bench.render import line, markdown, summary
from evict_profile.errors import ConfigError
from evict_profile.sweep.machine import cpu_name

SCHEMA = "evict-bench/1"
PARTS = ("decision", "shapes")


def run_bench(
    only: str | None, seeds: int, steps: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run both parts, or one; the answer is JSON-able.

    Returns:
        `schema`, `machine`, and of the parts that ran: `decision`, see
        `decision.time_decisions`; `shapes`, see `compare.compare_shapes`.

    Raises:
        ConfigError: `only` is no part, or too few seeds or steps for an interval.
    """
    if only not in (None, *PARTS):
        raise ConfigError(f"--only '{only}' is not one of {', '.join(PARTS)}")
    found: dict[str, Any] = {"schema": SCHEMA, "machine": machine()}
    if only in (None, "shapes"):
        found["shapes"] = compare_shapes(seeds, steps, progress)
    if only in (None, "decision"):
        found["decision"] = time_decisions(progress)
    return found


def machine() -> dict[str, Any]:
    """What the times were taken on."""
    return {
        "cpu": cpu_name(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "at_unix": round(time.time()),
    }


def as_markdown(found: Mapping[str, Any]) -> str:
    """The tables of a bench, as docs/how-to/truncate.md shows them."""
    parts = []
    if "shapes" in found:
        sizes = sorted({row["nodes"] for row in found["shapes"]["rows"]})
        for nodes in sizes:
            parts.append(f"{nodes} nodes: throughput over the best fixed width\n")
            parts.append(markdown(found["shapes"], nodes))
            parts.append(f"{nodes} nodes: the same over the shapes of cost\n")
            parts.append(summary(found["shapes"], nodes))
    if "decision" in found:
        parts.append("Decision: us, median and 95 % interval over rounds\n")
        parts.append(_decisions(found["decision"]))
    return "\n".join(parts)


def _decisions(timings: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for device in dict.fromkeys(timing["device"] for timing in timings):
        own = [timing for timing in timings if timing["device"] == device]
        names = tuple(dict.fromkeys(timing["what"] for timing in own))
        lines += [
            line((device, *names)),
            line(("---",) + ("--:",) * len(names)),
        ]
        for size in dict.fromkeys((t["batch"], t["nodes"]) for t in own):
            here = {t["what"]: t for t in own if (t["batch"], t["nodes"]) == size}
            cells = (_time(here[name]) if name in here else "" for name in names)
            lines.append(line((f"{size[0]} x {size[1]}", *cells)))
    return "\n".join(lines) + "\n"


def _time(timing: Mapping[str, Any]) -> str:
    low, mid, high = (timing[name] for name in ("low_us", "median_us", "high_us"))
    return f"{mid:.1f} ({low:.1f}..{high:.1f})"

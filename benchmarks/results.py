"""The tables of docs/results.md, from what a replay and the clock wrote as JSON.

python benchmarks/results.py REPLAY.json [REPLAY.json ...] --clock WALL_CLOCK.json
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import command
from evict_profile.errors import ConfigError

Found = Mapping[str, Any]


@command
def main(arguments: Sequence[str]) -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("replays", type=Path, nargs="+")
    parser.add_argument("--clock", type=Path, action="append", default=[])
    asked = parser.parse_args(arguments)
    replays = [read_replay(path) for path in asked.replays]
    clocks = [read_clock(path) for path in asked.clock]
    cells = [cell for replay in replays for cell in replay["cells"]]
    for title, lines in (
        ("Throughput over plain decoding", over(cells, "plain decoding")),
        (
            "Throughput over the best fixed pair",
            over(cells, "best fixed depth and width"),
        ),
        ("Aims", aims(cells)),
        ("Steps", (line for cell in cells for line in steps(cell))),
        ("Wrong tables", (line for replay in replays for line in misled(replay))),
        ("Memory", (line for replay in replays for line in memory(replay))),
        ("Clock", (line for found in clocks for line in clock(found))),
        ("Verdicts", verdicts(replays)),
    ):
        print(f"\n### {title}\n")
        print("\n".join(lines))


def read_replay(path: Path) -> Found:
    """Numbers of a replay.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    found = read(path)
    if not isinstance(found, dict) or not {"cells", "verdicts"} <= found.keys():
        raise ConfigError(
            f"{path}: is no replay's numbers; give what 'evict-profile replay --json' "
            "has written"
        )
    return found


def read_clock(path: Path) -> Sequence[Found]:
    """Numbers of wall_clock.py.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    found = read(path)
    try:
        rows = [row for place in found for row in place["rows"]]
        known = all("predicted_over_plain" in row for row in rows)
    except (TypeError, KeyError):
        known = False
    if not known:
        raise ConfigError(
            f"--clock {path}: is no clock's numbers; give what "
            "benchmarks/wall_clock.py has written"
        )
    return found


def read(path: Path) -> Any:
    """A JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {reason}; give a JSON file") from (
            error
        )


def row(fields: Iterable[object]) -> str:
    """A line of a table."""
    return "| " + " | ".join(map(str, fields)) + " |"


def head(first: str, others: Sequence[object]) -> Iterator[str]:
    """The lines that begin a table of numbers."""
    yield row((first, *others))
    yield "|---|" + "--:|" * len(others)


def short(place: Found) -> str:
    """A place in a few characters."""
    return f"{place['workload']} T={place['temperature']:g} B={place['batch']}"


def spread(estimate: Found, digits: int = 2) -> str:
    """A number and its interval."""
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if low is None or low == high:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"


def standing(cell: Found, policy: str) -> Any:
    """A policy's standing in a cell."""
    return next((s for s in cell["standings"] if s["policy"] == policy), None)


def over(cells: Sequence[Found], baseline: str) -> Iterator[str]:
    """A line a policy, a column a cell."""
    names = [s["policy"] for s in cells[0]["standings"]]
    yield from head("", [short(cell["place"]) for cell in cells])
    for name in names:
        found = [standing(cell, name) for cell in cells]
        yield row((name, *(spread(s["over"][baseline]) if s else "" for s in found)))
    yield row(
        (
            "best pair: depth, width",
            *(f"{c['best']['depth']}, {c['best']['width']}" for c in cells),
        )
    )
    yield row(("best width at full depth", *(c["best_width"]["width"] for c in cells)))


def aims(cells: Sequence[Found]) -> Iterator[str]:
    """How the best adaptive policies stand against what was aimed for."""
    yield from head(
        "policy, cell",
        ["over best width", "over the better of AR and best pair", "of the oracle"],
    )
    for cell in cells:
        for name in ("rate", "rate and depth", "rate and depth, links"):
            if own := standing(cell, name):
                over = own["over"]
                simpler = min(
                    (over["plain decoding"], over["best fixed depth and width"]),
                    key=lambda estimate: estimate["value"],
                )
                fields = (over["best fixed width"], simpler, over["oracle"])
                yield row((f"{name}, {short(cell['place'])}", *map(spread, fields)))


def steps(cell: Found) -> Iterator[str]:
    """What steps are like in one cell."""
    columns = ("committed", "verified", "depth", "union")
    times = ("verify_us", "draft_us", "fixed_us")
    where = short(cell["place"])
    yield f"{where}: {cell['prompts']} prompts, {cell['tokens']} tokens\n"
    yield from head(
        "",
        [
            "tokens/s",
            "tokens a step",
            "verified",
            "levels",
            "union",
            "verify ms",
            "draft ms",
            "rest ms",
        ],
    )
    for each in cell["standings"]:
        setting = f" ({each['setting']})" if each["setting"] else ""
        ms = (f"{each[name]['value'] / 1e3:.2f}" for name in times)
        yield row(
            (
                each["policy"] + setting,
                spread(each["tokens_per_s"], 0),
                *(spread(each[name]) for name in columns),
                *ms,
            )
        )
    yield ""


def misled(replay: Found) -> Iterator[str]:
    """What wrong tables cost."""
    for each in replay["misled"]:
        wrongs = list(dict.fromkeys(found["wrong"] for found in each["found"]))
        policies = list(dict.fromkeys(found["policy"] for found in each["found"]))
        yield f"{short(each['place'])}\n"
        yield from head("table", policies)
        for wrong in wrongs:
            found = [f for f in each["found"] if f["wrong"] == wrong]
            yield row((wrong, *(spread(f["over_right"], 3) for f in found)))
        yield ""


def memory(replay: Found) -> Iterator[str]:
    """Correlations of steps, and other memories."""
    found = replay["memory"]
    yield f"{short(replay['memory_of'])}\n"
    yield from head("steps apart", [lag["steps"] for lag in found["lags"]])
    for name in ("accepted", "claimed", "noise"):
        yield row((name, *(f"{lag[name]:.2f}" for lag in found["lags"])))
    yield ""
    yield from head("half-life, steps", [each["steps"] for each in found["half_lives"]])
    yield row(
        ("over two steps", *(spread(e["over_default"], 3) for e in found["half_lives"]))
    )
    yield ""


def clock(found: Sequence[Found]) -> Iterator[str]:
    """Predicted and measured, policy by policy."""
    for each in found:
        yield f"{short(each['place'])}\n"
        yield from head(
            "",
            [
                "predicted over plain",
                "measured",
                "measured over predicted",
                "tokens/s, CPU time",
                "tokens/s, wall",
                "verify, draft, rest ms: predicted",
                "measured",
                "deciding, ms",
            ],
        )
        for own in each["rows"]:
            measured, predicted = (
                own["measured_over_plain"],
                own["predicted_over_plain"],
            )
            parts = list(zip(*own["parts"].values(), strict=True))
            yield row(
                (
                    own["policy"] + ("" if own["same_steps"] else " *"),
                    f"{predicted:.3f}",
                    spread(measured, 3),
                    spread(own["gap"], 3),
                    spread(own["measured"], 0),
                    spread(own["measured_wall"], 0),
                    *(" ".join(f"{us / 1e3:.2f}" for us in part) for part in parts),
                    f"{own['decision_us'] / 1e3:.2f}",
                )
            )
        yield ""


def verdicts(replays: Sequence[Found]) -> Iterator[str]:
    """What is advised."""
    for replay in replays:
        yield replay["says"] + "\n"
        for each in replay["verdicts"]:
            yield f"- {each['says']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

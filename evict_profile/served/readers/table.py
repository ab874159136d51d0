"""A CSV of runs, one a line, with the columns and the numbers that people write.

Commas, semicolons or tabs separate; a comma in a number is a decimal mark if some
number of the file shows it, and else separates thousands. Of a step, a time per token
and tokens per second, the first that stands in a line is taken: it needs the least.
"""

import csv
import math
import re
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from evict_profile.errors import ConfigError
from evict_profile.records import Facts
from evict_profile.served.readers import facts
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.run import Deployment, Load, Run

T = TypeVar("T", Deployment, Load)

NAMES = {
    "drafts": "k, drafts, draft length, num speculative tokens, speculative tokens, "
    "draft n max, draft max, n max, spec tokens",
    "batch": "batch, batch size, bs, concurrency, max concurrency",
    "accept_length": "accepted, accept length, accepted length, acceptance length, "
    "accept len, acc len, mean acceptance length, mean accepted length, mean len, al, "
    "tokens/step, tokens per step",
    "acceptance": "acceptance, acceptance rate, accept rate, acc rate, "
    "draft acceptance, draft acceptance rate, avg draft acceptance rate",
    "step": "step, step time, step latency, decode step",
    "token": "tpot, median tpot, mean tpot, time per token, time per output token",
    "rate": "tok/s, tokens/s, t/s, tps, tokens per s, tokens per second, throughput, "
    "output throughput, gen throughput, generation throughput, output tok/s",
    "levels": "levels, steps, num steps",
    "topk": "topk, top k, eagle topk",
    "width": "verified, width, num draft tokens",
    "context": "context, mean context, context length",
    "text": "text, texts, prompts, prompt, dataset, dataset name",
    **{name: name for name in ("model", "gpu", "engine", "tp", "dtype", "host")},
    "version": "version, engine version",
    **{n: n.replace("_", " ") for n in Load.__struct_fields__ if n != "steps"},
}
"""Columns by field, in small letters, with spaces for underscores."""

UNREAD = {
    "ms per token": "it is no step; rename it to TPOT ms if it is of one request",
    "tok/s per request": "multiply it by the batch, and rename it to tok/s",
}
"""What to do with columns that look like those that are read."""
NEAR = 0.85
"""Similarity of two names from which one is taken to mean the other."""
APART = 0.05
"""The log of two columns' ratio above which they contradict each other."""

KNOWN = "known are " + ", ".join(n.partition(", ")[0] for n in NAMES.values())
FIELDS = {name: field for field, names in NAMES.items() for name in names.split(", ")}
TEXTS = ("text", "model", "gpu", "engine", "version", "dtype", "host", "graphs")
WHOLE = (
    "drafts", "batch", "levels", "topk", "width", "tp", "requests", "failed", "waiting"
)  # fmt: skip
ONE = ("batch", "topk", "width", "tp")
TRUTHS = {"has_prefill", "equal_lengths"}

TIMES_MS = {"": 1.0, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "s": 1e3}
OTHERS = dict.fromkeys(("", "tok/s", "tokens/s", "t/s", "tps", "tokens", "x"), 1.0)
OTHERS |= {"%": 0.01}
"""Units by what a cell of a column is multiplied with."""

MOST = 10_000
"""Letters of a file, among which a CSV has its header."""

NOTHING = ("", "nan", "n/a", "na", "-", "none", "null")
_NUMBER = re.compile(r"([+-]?[\d.,]*\d[\d.,]*(?:e[+-]?\d+)?)\s*(.*)", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")


def takes(text: str) -> bool:
    separator, lines = _lines(text[:MOST])
    names = next(iter(lines.values()), "").split(separator)
    return len(names) > 1 and any(_field(name)[0] for name in names)


def above_header(text: str) -> str:
    """What to do with lines above a CSV's header; "" where there is no header."""
    for number, line in _lines(text[:MOST])[1].items():
        if takes(line) and re.search(r"(?i)\b(batch|bs|k)\b", line):
            return (
                f"line {number} names the columns of a CSV, and the lines above it do "
                "not; begin those with #, or take them out"
            )
    return ""


def read(path: Path, text: str, given: int | None) -> FileRuns:
    separator, kept = _lines(text)
    cells = csv.reader(kept.values(), delimiter=separator, skipinitialspace=True)
    header, *rows = ([cell.strip() for cell in row] for row in cells)
    fields = {_field(name)[0] for name in header}
    for field in ("batch", *(["drafts"] if given is None else [])):
        if field not in fields:
            raise ConfigError(
                f"{path}: has no column {'K' if field == 'drafts' else field} among "
                f"{', '.join(header)}; add it, or rename the column that has it "
                f"({KNOWN})"
            )
    mark = _decimal_mark(rows, separator == ",", path)
    numbers = [*kept][1:]
    lines = [
        _Row(f"{path}, line {n}", header, row, mark)
        for n, row in zip(numbers, rows, strict=False)
    ]
    unread = [
        f"column {name} was not read{_advice(name)}"
        for name in header
        if not _field(name)[0]
    ]
    try:
        runs = [each.run(path, given) for each in lines]
    except ConfigError as error:
        advised = [each for each in unread if "; " in each]
        raise ConfigError("; ".join([str(error), *advised])) from error
    return FileRuns(runs, notes=[f"{path}: {each}" for each in unread])


def _lines(text: str) -> tuple[str, dict[int, str]]:
    """What separates columns, and by number the lines that are no comment or empty."""
    every = enumerate(text.splitlines(), 1)
    lines = {n: s for n, s in every if s.strip(" \t;,") and s.lstrip()[0] != "#"}
    header = next(iter(lines.values()), "")
    return next((mark for mark in ";\t" if mark in header), ","), lines


def _field(column: str) -> tuple[str, str]:
    """The field of a column and its unit; "" where there is none."""
    name = _plain(column)
    if name in FIELDS:
        return FIELDS[name], ""
    base, _, unit = name.rpartition(" ")
    field = FIELDS.get(base, "")
    if unit in TIMES_MS and field in ("step", "token"):
        return field, unit
    return (field, "") if unit in ("tok/s", "tokens", "%") else ("", "")


def _plain(column: str) -> str:
    return " ".join(re.sub(r"[_()\[\]-]", " ", column.lower()).split())


def _advice(column: str) -> str:
    """What to do with a column that is not read; "" where no other is near it."""
    name = _plain(column)
    near = get_close_matches(name, FIELDS, 1, NEAR)
    advice = UNREAD.get(name) or (f"rename it to {near[0]}" if near else "")
    return f"; {advice}" * bool(advice)


def _decimal_mark(rows: list[list[str]], commas_separate: bool, path: Path) -> str:
    """ "," if a number of this file shows that it is one, else "."."""
    matches = [_NUMBER.fullmatch(cell) for row in rows for cell in row]
    numbers = [match[1] for match in matches if match]
    commas = [each for each in numbers if "," in each]
    if any(not _THOUSANDS.fullmatch(each) for each in commas):
        return ","
    if commas and not commas_separate and not any("." in each for each in numbers):
        raise ConfigError(
            f"{path}: {commas[0]} may be a decimal number or thousands; write it "
            "without the comma"
        )
    return "."


class _Row:
    """What stands in one line, by field, and what its columns are called."""

    def __init__(
        self, source: str, header: list[str], row: list[str], mark: str
    ) -> None:
        self.source, self.mark = source, mark
        if any(row[len(header) :]):
            raise ConfigError(
                f"{source}: has {len(row)} cells under {len(header)} columns; put "
                'numbers with commas in quotes, as "1,367"'
            )
        self.names, self.found = dict[str, str](), Facts()
        for column, cell in zip_longest(header, row[: len(header)], fillvalue=""):
            field, unit = _field(column)
            if field and field not in self.found:
                self.names[field] = column
                if cell.lower() not in NOTHING:
                    self.found[field] = self._value(field, unit, cell)

    def _value(self, field: str, unit: str, cell: str) -> str | float | bool:
        if field in TEXTS:
            return cell
        if field in TRUTHS:
            return cell.lower() in ("true", "yes", "1")
        match = _NUMBER.fullmatch(cell)
        known = TIMES_MS if field in ("step", "token") else OTHERS
        said = (match[2].lower() if match else "") or unit
        if not match or said not in known:
            units = " in ms, us or s" if known is TIMES_MS else ""
            raise self._error(field, cell, f"a number{units}")
        text = match[1].replace("," if self.mark == "." else ".", "")
        try:
            value = float(text.replace(",", ".")) * known[said]
        except ValueError as error:
            raise self._error(field, cell, "a number") from error
        if not 0.0 <= value < math.inf:
            raise self._error(field, cell, "a number of at least 0")
        if field in WHOLE and (value != int(value) or value < (field in ONE)):
            raise self._error(field, cell, f"a whole number from {int(field in ONE)}")
        return int(value) if field in WHOLE else value

    def _error(self, field: str, cell: str, wanted: str) -> ConfigError:
        name = self.names[field]
        return ConfigError(f"{self.source}: {name} must be {wanted}, and is {cell}")

    def run(self, path: Path, given: int | None) -> Run:
        own = self.found
        needed = {"batch", "drafts"} if given is None else {"batch"}
        if empty := [self.names[field] for field in sorted(needed - own.keys())]:
            raise ConfigError(
                f"{self.source}: column {empty[0]} is empty; fill it in (K is 0 for "
                "plain decoding)"
            )
        drafts = facts.drafts_of(path, own.get("drafts"), given)
        known = {name: own[name] for name in Run.__struct_fields__ if name in own}
        known |= {"drafts": drafts, "accept_lengths": self._lengths(drafts)}
        self._check_columns(drafts, known["accept_lengths"])
        known["deployment"] = _part(Deployment, own)
        known["load"] = _part(Load, own)
        return facts.timed(self.source, *self._times_us(drafts), **known)

    def _lengths(self, drafts: int) -> dict[int, float]:
        """The accepted length, also as a rate by draft."""
        length, rate = self.found.get("accept_length"), self.found.get("acceptance")
        if length is None and rate is not None and drafts:
            if rate > 1.0:
                raise self._error("acceptance", f"{rate:g}", "a rate from 0 to 1")
            length = 1.0 + drafts * rate
        if length is None or (not drafts and length in (0.0, 1.0)):
            return {}
        if not length:
            raise self._error("accept_length", "0", "at least 1")
        return {self.found.get("levels", drafts): length}

    def _check_columns(self, drafts: int, lengths: dict[int, float]) -> None:
        """Refuse a step, or an accepted length, that another column contradicts."""
        own, length = self.found, next(iter(lengths.values()), 0.0 if drafts else 1.0)
        share = own.get("acceptance") if own.get("topk", 1) == 1 else None
        rate = own.get("rate") or math.inf
        makes = (
            ("step", "token", own.get("token", 0.0) * length),
            ("step", "rate", 1e3 * own.get("batch", 0) * length / rate),
            ("accept_length", "acceptance", 1 + drafts * share if share else 0.0),
        )
        for one, other, value in makes:
            stated = own.get(one)
            if stated and value and abs(math.log(stated / value)) > APART:
                raise ConfigError(
                    f"{self.source}: {self.names[one]} is {stated:g}, and "
                    f"{self.names[other]} of {own[other]:g} makes it {value:.3g}; "
                    "leave out the wrong column"
                )

    def _times_us(self, drafts: int) -> tuple[float | None, float | None]:
        """Microseconds between two tokens of a request, and of a step."""
        own = self.found
        if own.get("step"):
            return None, 1e3 * own["step"]
        if own.get("token"):
            return 1e3 * own["token"], None
        if own.get("rate"):
            return 1e6 * own["batch"] / own["rate"], None
        if drafts and own.get("accept_length", own.get("acceptance")):
            return None, None
        raise ConfigError(
            f"{self.source}: states no time of a step; fill in one of step ms, TPOT ms "
            "and tok/s"
        )


def _part(kind: type[T], found: Facts) -> T:
    return kind(**{k: found[k] for k in kind.__struct_fields__ if k in found})

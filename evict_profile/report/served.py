"""What a server's runs and a served table say on a terminal."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import to_builtins
from rich.console import Console

from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.records import differences, to_mapping
from evict_profile.report.console import Rows, print_rows, wrapped
from evict_profile.report.numbers import MS, counted, spread
from evict_profile.served.findings import UNLIKE, Finding, findings, unknown
from evict_profile.served.probe.record import RoutedExperts
from evict_profile.served.run import Run
from evict_profile.served.setting import FEWEST, Setting, same_context, settings_of
from evict_profile.served.table import ServedTable
from evict_profile.stats import Estimate

BEFORE_AFTER = ("before", "after")


def setting_rows(settings: Sequence[Setting]) -> Rows:
    """A row a setting; over plain decoding where the same batch and context has it."""

    def break_even(setting: Setting) -> str:
        return spread(change) if (change := ratio_of(setting, settings)) else ""

    def speed(setting: Setting) -> str:
        change, length = ratio_of(setting, settings), setting.accept_length
        return f"{length.value / change.value:.2f}" if change and length else ""

    columns: dict[str, Callable[[Setting], object]] = {
        "setting": lambda setting: setting.name,
        "context": lambda setting: f"{setting.context:.0f}" if setting.context else "",
        "runs": lambda setting: len(setting.runs),
        "step, ms": lambda setting: MS.spread(setting.step_us),
        "over plain = break-even": break_even,
        "accepted": accepted,
        "times plain": speed,
    }
    rows = Rows.of(settings, columns)
    shown = [i for i, cells in enumerate(zip(*rows.cells, strict=True)) if any(cells)]
    return Rows(
        [rows.head[i] for i in shown], [[row[i] for i in shown] for row in rows.cells]
    )


def _numbers(settings: Sequence[Setting]) -> object:
    """The same in numbers, those with an interval as value, low and high."""
    rows = [
        {
            "setting": each.name,
            "context": each.context,
            "runs": len(each.runs),
            "step_us": each.step_us,
            "break_even": ratio_of(each, settings),
            "accept_length": each.accept_length if each.drafts else None,
        }
        for each in settings
    ]
    return to_builtins(rows)


def ratio_of(each: Setting, settings: Sequence[Setting]) -> Estimate | None:
    plain = plain_of(each, settings)
    return each.ratio_to(plain) if each.drafts and plain else None


def plain_of(each: Setting, settings: Sequence[Setting]) -> Setting | None:
    plain = (s for s in settings if not s.drafts and s.batch == each.batch)
    return next((s for s in plain if same_context(s, each)), None)


def accepted(each: Setting) -> str:
    if not each.drafts:
        return ""
    length = each.accept_length
    return f"{length.value:.2f}" if length else "not stated"


def runs_document(
    runs: Sequence[Run], left_out: Mapping[str, str]
) -> dict[str, object]:
    return {
        "settings": _numbers(settings_of(runs)),
        "left_out": dict(left_out),
        "findings": [finding._asdict() for finding in findings(runs, left_out)],
        "unknown": unknown(runs),
    }


def show_runs(
    console: Console, runs: Sequence[Run], left_out: Mapping[str, str]
) -> None:
    if settings := settings_of(runs):
        print_rows(console, setting_rows(settings))
    for why, count in Counter(left_out.values()).most_common():
        say(console, wrapped(f"left out: {counted(count, 'run')}: {why}", "  "))
    show_findings(console, findings(runs, left_out), unknown(runs))


def show_findings(
    console: Console, found: Sequence[Finding], missing: Sequence[str]
) -> None:
    for finding in found:
        say(console, wrapped(finding.sentence, "  "))
    if not found:
        say(console, "Nothing was found in what these runs state.")
    if missing:
        line = f"Not known from these runs: {', '.join(missing)}."
        say(console, wrapped(line, "  "))


def show_served_table(
    console: Console, table: ServedTable, as_json: bool = False
) -> None:
    rows = setting_rows(table.settings)
    facts = {
        "served": f"{counted(len(table.runs), 'run')} of "
        f"{counted(len(table.settings), 'setting')}",
        "left out": counted(len(table.left_out), "run") if table.left_out else "",
        "growth in K": f"of the cost table {table.shape.table}" if table.shape else "",
    }
    facts = {name: fact for name, fact in facts.items() if fact}
    if as_json:
        key = to_mapping(table.key)
        document = runs_document(table.runs, table.left_out)
        say(
            console, json_of({"key": key, "version": table.version, **facts} | document)
        )
        return
    say(console, wrapped(f"{table.title}, served, version {table.version}"))
    for name, fact in facts.items():
        say(console, wrapped(f"{name}: {fact}", "  "))
    print_rows(console, rows)


def served_list(tables: Sequence[ServedTable]) -> Rows:
    return Rows.of(
        tables,
        {
            "served table": lambda table: str(table.path),
            "runs": lambda table: len(table.runs),
            "batches": lambda table: _each(s.batch for s in table.settings),
            "K": lambda table: _each(s.drafts for s in table.settings),
            "accepted": _accepted_ends,
        },
    )


def _each(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted({*numbers})))


def _accepted_ends(table: ServedTable) -> str:
    found = [
        s.accept_length.value for s in table.settings if s.drafts and s.accept_length
    ]
    return f"{min(found):.2f} to {max(found):.2f}" if found else "not stated"


SHOWN = 3
"""Changes of a version that `import` names."""


def followed(before: ServedTable, after: ServedTable, path: Path) -> str:
    """What is said of a version whose runs differ from those of the next, `path`."""
    found = _changes(before.settings, after.settings)
    more = [f"{len(found) - SHOWN} more"] * (len(found) > SHOWN)
    differ = "; ".join([*found[:SHOWN], *more]) or "within all intervals"
    way = (
        f". For all runs in one table, import {before.path} beside the files, as "
        "FILE=K:TEXT where texts differ"
    )
    is_shape = before.runs == after.runs
    what = "another --shape" if is_shape else f"other runs of this server ({differ})"
    return (
        f"{before.path} has {what}; it stays, and "
        f"`advise` by name reads {path.name}"
        f"{way * any(run not in after.runs for run in before.runs)}"
    )


def show_served_diff(
    console: Console, before: ServedTable, after: ServedTable, as_json: bool = False
) -> bool:
    """Print how two served tables differ, other deployments first; False if they do
    not.
    """
    keys = [to_mapping(table.key) for table in (before, after)]
    apart = differences(*keys, sides=BEFORE_AFTER)
    lines = [f"another deployment: {line}" for line in apart]
    lines += _changes(before.settings, after.settings)
    if as_json:
        say(console, json_of(lines))
        return bool(lines)
    for line in lines or ["no difference in deployment or steps beyond both intervals"]:
        say(console, line)
    return bool(lines)


def _changes(before: Sequence[Setting], after: Sequence[Setting]) -> list[str]:
    """Settings that one side has, and what lies apart of the others."""
    pairs = [(s, other) for s in before if (other := _same_of(s, after))]
    apart = [(s, line) for s, other in pairs for line in _apart(s, other)]
    changed = {setting.batch for setting, _ in apart}
    plain = [pair for pair in pairs if not pair[0].drafts and pair[0].batch in changed]
    return [
        *(line for s, other in plain for line in _fastest((s, before), (other, after))),
        *(line for _, line in apart),
        *(f"{s.name}: only before" for s in before if not _same_of(s, after)),
        *(f"{s.name}: only after" for s in after if not _same_of(s, before)),
    ]


def _apart(one: Setting, other: Setting) -> Iterator[str]:
    if _lie_apart(one.step_us, other.step_us):
        change = other.step_us.value / one.step_us.value - 1.0
        was, now = (MS.spread(each.step_us) for each in (one, other))
        yield f"{one.name}: {was} ms before, {now} ms after ({change:+.0%})"
    length, new = one.accept_length, other.accept_length
    if length and new and _lie_apart(length, new):
        ratio = new.value / length.value
        # The lengths of few runs have no interval, and lie apart as those of texts do.
        few = min(len(one.runs), len(other.runs)) < FEWEST
        if not few or max(ratio, 1.0 / ratio) > UNLIKE:
            was, now = f"{length.value:.2f}", f"{new.value:.2f}"
            yield f"{one.name}: {was} accepted before, {now} after ({ratio - 1:+.0%})"


def _fastest(*sides: tuple[Setting, Sequence[Setting]]) -> Iterator[str]:
    """Which draft is the fastest beside plain decoding, if that changed."""
    (was, one), (now, other) = (
        max(
            (each.accept_length.value / each.ratio_to(plain).value, each.draft)
            for each in settings
            if each.accept_length and plain in (each, plain_of(each, settings))
        )
        for plain, settings in sides
    )
    if one != other:
        ends = f"{one} ({was:.2f} times plain) before, {other} ({now:.2f}) after"
        yield f"fastest at batch {sides[0][0].batch}: {ends}"


def _same_of(each: Setting, others: Sequence[Setting]) -> Setting | None:
    same = (other for other in others if other.name == each.name)
    return next((other for other in same if same_context(other, each)), None)


def _lie_apart(one: Estimate, other: Estimate) -> bool:
    return one.high < other.low or other.high < one.low


def show_routes(console: Console, found: RoutedExperts) -> None:
    """Experts of a layer that n consecutive tokens of each request activate."""
    several = {f"{b.batch} requests": (b.batch, b.union) for b in found.batches}
    rows = [
        {
            "tokens a request": n,
            "1 request": f"{found.union[n]:.1f} ± {found.half_width[n]:.1f}",
            **{name: f"{union[n * b]:.1f}" for name, (b, union) in several.items()},
        }
        for n in (1, 2, 4, 8, 16, 32)
    ]
    print_rows(console, Rows(tuple(rows[0]), [tuple(row.values()) for row in rows]))
    say(console, f"{found.tokens:,} committed tokens of {found.replies} replies")

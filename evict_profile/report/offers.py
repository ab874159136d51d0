"""What can be estimated from public measurements, on a terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.report.console import Rows, print_rows, wrapped
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, PACKAGE, VERSION
from evict_profile.sources.asked import Deployment

NEAR_BY = "by layers near by"
SOURCE = f"{PACKAGE} {VERSION} ({LICENCE}), {ATTRIBUTION}"


def show_offers(
    console: Console,
    offers: Mapping[str, Sequence[Deployment]],
    is_one: bool,
    as_json: bool,
) -> None:
    """A row for each model and GPU; of one model, one for each data type."""
    rows = _of_one(*offers.values()) if is_one else _of_all(offers)
    if as_json:
        say(console, json_of(rows.records))
        return
    print_rows(console, rows)
    say(console, wrapped(f"rows of {SOURCE}"))
    if not is_one:
        say(console, "data types and --tp: evict-profile estimate --list --model NAME")


def _of_all(offers: Mapping[str, Sequence[Deployment]]) -> Rows:
    engines: dict[tuple[str, str], dict[str, bool]] = {}
    for name, own in offers.items():
        for each in own:
            near = engines.setdefault((name, each.gpu), {})
            near[each.engine] = each.near and near.get(each.engine, True)
    cells = [
        (*where, _words(near, False), _words(near, True))
        for where, near in sorted(engines.items())
    ]
    return Rows(("model", "GPU", "engines", NEAR_BY), cells, ("GPU", "engines"))


def _of_one(own: Sequence[Deployment]) -> Rows:
    sizes: dict[tuple[str, ...], dict[str, bool]] = {}
    for each in own:
        where = (each.gpu, each.engine, each.dtype)
        sizes.setdefault(where, {})[str(each.tp)] = each.near
    cells = [
        (*where, _words(near, False), _words(near, True))
        for where, near in sizes.items()
    ]
    return Rows(("GPU", "engine", "dtype", "tp", f"tp, {NEAR_BY}"), cells)


def _words(near: Mapping[str, bool], wanted: bool) -> str:
    return ", ".join(sorted(name for name, own in near.items() if own == wanted))

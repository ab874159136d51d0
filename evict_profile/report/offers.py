"""What can be composed of public measurements, on a terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console

from evict_profile.config import ModelSpec
from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.report.console import Rows, print_rows, wrapped
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, PACKAGE, VERSION
from evict_profile.sources.pairs import KernelKey, models_by_shape

SOURCE = f"{PACKAGE} {VERSION} ({LICENCE}), {ATTRIBUTION}"


def show_offers(
    console: Console, pairs: Sequence[KernelKey], model: ModelSpec | None, as_json: bool
) -> None:
    """A row for each known model and GPU; of one model, one for each data type."""
    rows = _of_model(pairs) if model else _of_all(pairs)
    if as_json:
        say(console, json_of(rows.records))
        return
    print_rows(console, rows)
    say(console, wrapped(f"rows of {SOURCE}"))
    if not model:
        say(console, "data types and --tp of one: evict-profile compose --list --model")


def _of_all(pairs: Sequence[KernelKey]) -> Rows:
    engines: dict[tuple[str, str], set[str]] = {}
    for pair in pairs:
        for name in models_by_shape().get(pair.shape, ()):
            engines.setdefault((name, pair.gpu), set()).add(pair.engine)
    cells = [(*where, ", ".join(sorted(own))) for where, own in sorted(engines.items())]
    return Rows(("model", "GPU", "engines"), cells, ("GPU", "engines"))


def _of_model(pairs: Sequence[KernelKey]) -> Rows:
    shardings: dict[tuple[str, ...], set[int]] = {}
    for pair in pairs:
        where = (pair.gpu, pair.engine, pair.version, pair.dtype)
        shardings.setdefault(where, set()).add(pair.tp)
    cells = [
        (*where, ", ".join(map(str, sorted(own)))) for where, own in shardings.items()
    ]
    head = ("GPU", "engine", "version", "dtype", "tp")
    return Rows(head, cells, head)


def show_refused(console: Console, outcomes: Mapping[str, Mapping[str, str]]) -> None:
    first = Counter(o["why"].partition(":")[0] for o in outcomes.values() if "why" in o)
    print_rows(console, Rows(("refused by", "pairs"), first.most_common()))

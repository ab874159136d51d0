"""What can be composed of public measurements, on a terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console

from evict_profile.config.load import known_models, load_model
from evict_profile.io import say
from evict_profile.report.console import Rows, print_rows
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, PACKAGE, VERSION
from evict_profile.sources.pairs import KernelKey, shape_of

SOURCE = f"{PACKAGE} {VERSION} ({LICENCE}), {ATTRIBUTION}"
HEAD = ("GPU", "engine", "version", "dtype")


def show_offers(console: Console, pairs: Sequence[KernelKey]) -> None:
    """One line per GPU, engine, version and data type, with known models."""
    models = [load_model(str(path)) for path in known_models()]
    names = {shape_of(model): model.name for model in models}
    shapes: dict[tuple[str, ...], set[tuple[int, int, int, int]]] = {}
    for pair in pairs:
        where = (pair.gpu, pair.engine, pair.version, pair.dtype)
        shapes.setdefault(where, set()).add(pair.shape)
    cells = [
        (
            *where,
            ", ".join(sorted(names[s] for s in own & names.keys())) or "-",
            len(own - names.keys()),
        )
        for where, own in sorted(shapes.items())
    ]
    print_rows(console, Rows((*HEAD, "models", "other shapes"), cells))
    say(console, f"rows of {SOURCE}")


def show_pairs(console: Console, pairs: Sequence[KernelKey]) -> None:
    """One line per kernel of one model, with measured shardings."""
    shardings: dict[tuple[str, ...], list[str]] = {}
    for pair in pairs:
        where = (pair.gpu, pair.engine, pair.version, pair.dtype, pair.kernel)
        shardings.setdefault(where, []).append(f"{pair.tp}x{pair.ep}")
    cells = [(*where, " ".join(how)) for where, how in shardings.items()]
    print_rows(console, Rows((*HEAD, "kernel", "tp x ep"), cells))


def show_refused(console: Console, outcomes: Mapping[str, Mapping[str, str]]) -> None:
    first = Counter(o["why"].partition(":")[0] for o in outcomes.values() if "why" in o)
    print_rows(console, Rows(("refused by", "pairs"), first.most_common()))

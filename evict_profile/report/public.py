"""What public measurements offer, and what was composed of them, on a terminal."""

from collections.abc import Sequence

from rich.console import Console

from evict_profile.config.model import known_models, load_model
from evict_profile.io import say
from evict_profile.report.console import show_gates
from evict_profile.report.tables import Rows, print_rows
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, PACKAGE, VERSION
from evict_profile.sources.pairs import Pair, shape_of
from evict_profile.table import Composition, CostTable


def show_offers(console: Console, pairs: Sequence[Pair]) -> None:
    """One line a GPU, engine, version and data type, with the models of `configs/`."""
    models = [load_model(str(path)) for path in known_models()]
    names = {shape_of(model): model.name for model in models}
    shapes: dict[tuple[str, ...], set[tuple[int, int, int, int]]] = {}
    for pair in pairs:
        where = (pair.gpu, pair.engine, pair.version, pair.dtype)
        shapes.setdefault(where, set()).add(pair.shape)
    rows = [
        (
            *where,
            ", ".join(sorted(names[s] for s in own & set(names))) or "-",
            len(own - set(names)),
        )
        for where, own in sorted(shapes.items())
    ]
    head = ("GPU", "engine", "version", "dtype", "models", "other shapes")
    print_rows(console, Rows(head, rows))
    say(console, f"rows of {PACKAGE} {VERSION} ({LICENCE}), {ATTRIBUTION}")


def show_pairs(console: Console, pairs: Sequence[Pair]) -> None:
    """One line a kernel of one model, with the shardings that were measured."""
    shardings: dict[tuple[str, ...], list[str]] = {}
    for pair in pairs:
        where = (pair.gpu, pair.engine, pair.version, pair.dtype, pair.kernel)
        shardings.setdefault(where, []).append(f"{pair.tp}x{pair.ep}")
    head = ("GPU", "engine", "version", "dtype", "kernel", "tp x ep")
    rows = [(*where, " ".join(how)) for where, how in shardings.items()]
    print_rows(console, Rows(head, rows))


def show_composed(console: Console, table: CostTable) -> None:
    """The gates of a composed table, and what a wider step costs by it."""
    show_gates(console, table.gates)
    key, context = table.key, min(table.axes.context)
    price = table.price(1, context)
    plain_us = price.step_cost_us[1]
    say(console, f"{key.model} on {key.where}: {key.engine} {key.engine_version}")
    say(
        console,
        f"plain decoding at batch 1, context {context}: {plain_us / 1e3:.2f} ms a step "
        f"(95 % {price.low_us[1] / 1e3:.2f}..{price.high_us[1] / 1e3:.2f})",
    )
    widths = [n for n in table.axes.width if n < len(price.step_cost_us)]
    ratios = [f"{price.step_cost_us[n] / plain_us:.2f}" for n in widths]
    print_rows(console, Rows(("n", *map(str, widths)), [("C(n)/C(1)", *ratios)]))
    assert isinstance(table.provenance, Composition)
    say(console, f"fixed time of a step: {table.provenance.fixed_from}")

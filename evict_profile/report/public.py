"""What public measurements offer, on a terminal."""

from collections.abc import Callable, Sequence

from rich.console import Console

from evict_profile.io import say
from evict_profile.report.tables import Rows, print_rows
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, PACKAGE, VERSION
from evict_profile.sources.experts import Pair
from evict_profile.sources.offers import Offer


def show_offers(console: Console, offers: Sequence[Offer]) -> None:
    """One line a GPU, engine, version and data type."""
    columns: dict[str, Callable[[Offer], object]] = {
        "GPU": lambda offer: offer.gpu,
        "engine": lambda offer: offer.engine,
        "version": lambda offer: offer.version,
        "dtype": lambda offer: offer.dtype,
        "models": lambda offer: ", ".join(offer.models) or "-",
        "other shapes": lambda offer: offer.shapes - len(offer.models),
    }
    print_rows(console, Rows.of(offers, columns))
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

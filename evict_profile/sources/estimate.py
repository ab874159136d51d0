"""A table estimated on the spot, and kept in the user's cache."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from evict_profile import __version__
from evict_profile.config import ModelSpec
from evict_profile.errors import DataError
from evict_profile.io import write_atomically
from evict_profile.records import digest, replace, to_mapping
from evict_profile.sources.aiconfigurator import VERSION, open_source
from evict_profile.sources.asked import Placement
from evict_profile.sources.pairs import kernels_of
from evict_profile.table import CostTable


def estimated_table(
    model: ModelSpec,
    asked: Placement,
    place: Path | None,
    say: Callable[[str], None],
) -> CostTable:
    path = _cached(model, asked, place)
    with suppress(DataError):
        return CostTable.load(path)
    rows = open_source(place)
    kernels = kernels_of(rows, model, *asked)
    # What has no rows is refused before scipy loads.
    from evict_profile.sources.compose import compose, composer_of, sweep_of

    say("estimating: about 15 s")
    table, _ = compose(composer_of(rows, kernels, model), sweep_of())
    with suppress(DataError):
        write_atomically(path, table.save)
        say(f"kept: {path}")
    return replace(table, path=path)


def _cached(model: ModelSpec, asked: Placement, place: Path | None) -> Path:
    rows = [VERSION] if place is None else [place.name, place.stat().st_size]
    facts = {"model": to_mapping(model), "asked": asked, "rows": rows}
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    name = digest({**facts, "version": __version__})[:16]
    return home / "evict-profile" / f"{model.name}-{name}.json"

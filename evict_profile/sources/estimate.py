"""A table estimated on the spot, and kept in the user's cache."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from evict_profile import __version__
from evict_profile.config import ModelSpec
from evict_profile.errors import DataError, EvictProfileError, MeasurementError
from evict_profile.io import write_atomically
from evict_profile.records import digest, replace, to_mapping
from evict_profile.sources.aiconfigurator import VERSION, Source, open_source
from evict_profile.sources.asked import ENGINES, Placement
from evict_profile.sources.pairs import kernels_of
from evict_profile.table import CostTable

if TYPE_CHECKING:
    import pandas as pd


def estimated_table(
    model: ModelSpec,
    asked: Placement,
    place: Path | None,
    say: Callable[[str], None],
) -> CostTable:
    path = _cached(model, asked, place)
    with suppress(DataError):
        return CostTable.load(path)
    table, _ = estimated(open_source(place), model, asked, say)
    with suppress(DataError):
        write_atomically(path, table.save)
        say(f"kept: {path}")
    return replace(table, path=path)


def estimated(
    rows: Source, model: ModelSpec, asked: Placement, say: Callable[[str], None]
) -> tuple[CostTable, "pd.DataFrame"]:
    """The table and its cells; a refusal names the engines that have an estimate."""
    kernels_of(rows, model, *asked)  # Without rows, this refuses before scipy loads.
    say("estimating: about 5 s")
    try:
        return _composed(rows, model, asked)
    except MeasurementError as error:
        others = " | ".join(f"--engine {e}" for e in estimable(rows, model, asked))
        offer = f"; there is an estimate of {others}" * bool(others)
        raise MeasurementError(f"{error}{offer}") from error


def estimable(rows: Source, model: ModelSpec, asked: Placement) -> Iterator[str]:
    for engine in ENGINES:
        with suppress(EvictProfileError):
            _composed(rows, model, asked._replace(engine=engine))
            yield engine


def _composed(
    rows: Source, model: ModelSpec, asked: Placement
) -> tuple[CostTable, "pd.DataFrame"]:
    from evict_profile.sources.compose import compose, composer_of, sweep_of

    kernels = kernels_of(rows, model, *asked)
    return compose(composer_of(rows, kernels, model), sweep_of())


def _cached(model: ModelSpec, asked: Placement, place: Path | None) -> Path:
    rows = [VERSION] if place is None else [place.name, place.stat().st_size]
    facts = {"model": to_mapping(model), "asked": asked, "rows": rows}
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    name = digest({**facts, "version": __version__})[:16]
    return home / "evict-profile" / f"{model.name}-{name}.json"

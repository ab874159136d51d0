"""What is known of a deployment by its names: a table, or the reason why there is none.

A sweep's table comes first, then runs of a server, then an estimate. Where all fail,
public runs of other servers answer, and the reason is said beside.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from evict_profile.advice.steps import Table, tp_of
from evict_profile.config import load_model
from evict_profile.config.load import model_label
from evict_profile.config.names import shape_note
from evict_profile.errors import ConfigError, DataError, EvictProfileError
from evict_profile.io import nearest
from evict_profile.records import replace
from evict_profile.served.search import find_served, versions_of
from evict_profile.served.table import NOT_STATED, ServedTable
from evict_profile.table import MEASURED, CostTable, by_name, search_path, tables_in
from evict_profile.table.search import DTYPES, Found, nearest_named

QUANTISED = re.compile(r"(?i)(?<![a-z])(mx|nv)?fp[48]|int[48]|awq|gptq")
"""Formats of weights in the names of checkpoints."""


class Names(NamedTuple):
    """As a user types them; `rows` is the wheel of public kernel rows."""

    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    tp: int | None = None
    dtype: str | None = None
    rows: Path | None = None

    @property
    def any(self) -> bool:
        return any(each is not None for each in self)


class Known(NamedTuple):
    table: Table | None
    reason: str = ""

    def preface(self, names: Names) -> str:
        """Whose shape the table has, how many GPUs, and what no run states of these."""
        if self.table is None:
            return ""
        note = shape_note(names.model or "", self.table.key.model)
        tp = None if names.tp else tp_of(self.table)
        of_gpus = f"Of {tp} GPU{'s' * (tp > 1)} (--tp {tp}): " if tp else ""
        return f"{note}{'. ' * bool(note)}{of_gpus}{_unstated(self.table, names)}"


def look_up(names: Names, say: Callable[[str], None]) -> Known:
    """The table of these names; or the reason why there is none.

    Raises:
        DataError: several tables are of these names.
    """
    if not names.any:
        return Known(None)
    folders = [tables_in([folder]) for folder in search_path()]
    given = names.model
    names = names._replace(model=given and model_label(given))
    model, gpu, engine = names[:3]
    if found := _swept(folders, names, measured=True):
        return Known(found)
    if model and gpu and (served := _served(model, gpu, engine)):
        versions = versions_of(served.key, served.path.parent)
        if len(versions) > 1:
            say(
                f"{served.path}: is the newest of {len(versions)} versions, which "
                f"'evict-profile show {quote(str(served.path.parent))}' lists"
            )
        return Known(served)
    # Rows that are named are estimated from: shipped estimates cover less.
    own = names._replace(dtype=names.dtype or _published(given or ""))
    if not names.rows and (found := _swept(folders, own, measured=False)):
        return Known(found)
    try:
        return Known(_estimated(names, given, say))
    except EvictProfileError as error:
        near = nearest_named([t for f in folders for t in f], *names[:3])
        others = f"; there is a table: {' | '.join(near)}" if near else ""
        return Known(None, f"{error}{others}")


def _served(model: str, gpu: str, engine: str | None) -> ServedTable | None:
    """Runs of a server; of an engine that they do not state, where none states it."""
    if found := find_served(model, gpu, engine):
        return found
    with suppress(DataError):
        other = find_served(model, gpu, None)
        return other if other and other.key.engine == NOT_STATED else None
    return None


def _unstated(table: Table, names: Names) -> str:
    """What was asked for and no run states; a `DataError` where they state another."""
    if isinstance(table, CostTable):
        return ""
    size = ("tensor-parallel size", table.tp or NOT_STATED, names.tp)
    said = ""
    for what, own, asked in (size, ("data type", table.key.dtype, names.dtype)):
        if asked and own == NOT_STATED:
            said += f"The runs do not state their {what}; {asked} was asked for. "
        elif asked and DTYPES.get(str(asked), asked) != own:
            raise DataError(
                f"{table.path}: its runs have the {what} {own}, and {asked} was asked "
                "for; leave that out, or advise on the file of: evict-profile estimate"
            )
    return said


def _swept(
    folders: Sequence[Sequence[Found]], names: Names, measured: bool
) -> CostTable | None:
    """The first folder's table of these names; of several sizes, on one GPU."""
    model, gpu, engine, tp, dtype, _ = names
    if not (model and gpu and engine):
        return None
    stored = "" if dtype else _format(model)
    for folder in folders:
        tables = [
            each
            for each in folder
            if each.table and (each.table.origin == MEASURED) == measured
            if stored in ("", _format(each.table.key.dtype))
        ]
        on_one = None if tp else by_name(tables, model, gpu, engine, 1, dtype)
        if found := on_one or by_name(tables, model, gpu, engine, tp, dtype):
            return found
    return None


def _format(name: str) -> str:
    """The format of weights that a name says: fp8, also of fp8_block; "" if none."""
    return (QUANTISED.search(name.lower()) or [""])[0]


def _published(model: str) -> str | None:
    """The type of a known model's experts; None where its name says a format."""
    if Path(model).exists() or not _format(model):
        from evict_profile.sources.asked import row_dtype

        with suppress(ConfigError):
            return row_dtype(load_model(model))
    return None


def check_format(model: str, dtype: str | None) -> None:
    """Refuse a name that says a format of weights, where none is given."""
    if not dtype and (named := QUANTISED.search(model)):
        raise ConfigError(
            f"--model {model}: its name says {named[0]}; give the weights' format with "
            "--dtype"
        )


def _estimated(
    names: Names, given: str | None, say: Callable[[str], None]
) -> CostTable:
    """An estimate by public kernel rows; a `ConfigError` says why there is none.

    `given` is the model as typed. A file states its format.
    """
    model, gpu, engine, tp, dtype, rows = names
    if model and model == given:
        check_format(model, dtype)
    shape = load_model(given) if given else None  # An unknown name is the reason.
    from evict_profile.sources.asked import ENGINES, assumption, has_rows, placement_of
    from evict_profile.sources.pairs import GPUS

    if gpu and not has_rows(gpu, (engine or ENGINES[0]).lower()):
        near = nearest(gpu, [name.removesuffix("_sxm") for name in GPUS])
        raise ConfigError(
            f"no public rows are of {gpu} under {engine or 'any engine'}{near}"
        )
    if not (model and shape and gpu and engine):
        missing = [
            f"--{each}" for each in Names._fields[:3] if not getattr(names, each)
        ]
        raise ConfigError(f"{' and '.join(missing)} would have to be given too")
    from evict_profile.sources.aiconfigurator import PACKAGE, VERSION, MissingSource
    from evict_profile.sources.estimate import estimated_table

    asked = placement_of(shape, gpu, engine.lower(), dtype, tp)
    try:
        table = estimated_table(shape, asked, rows, say)
    except MissingSource as error:
        raise ConfigError(
            f"no table is of {model} on {gpu} under {engine}; for an estimate, if its "
            f"rows pass their gates: pip download --no-deps "
            f"{PACKAGE}=={VERSION}, and the same command with {asked.options} "
            f"--from {PACKAGE.replace('-', '_')}-{VERSION}-*.whl"
        ) from error
    known = () if dtype else (assumption(shape),)
    return replace(table, caveats=table.caveats + known)

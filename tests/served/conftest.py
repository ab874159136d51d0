"""Stands in for the room of readers until it is there: a CSV and a probe's file."""

import importlib.util
import sys
from types import ModuleType

import pandas as pd
from msgspec import Struct

from evict_profile.calibrate.probed import settings
from evict_profile.errors import ConfigError
from evict_profile.served.run import Deployment, Load, Run

NAMES = {"K": "drafts", "step ms": "step_ms", "tok/s": "rate", "prompts": "text"}


class Reading(Struct, frozen=True):
    runs: list[Run]
    notes: list[str] = []
    left_out: dict[str, str] = {}


class Given(Struct, frozen=True):
    drafts: int | None = None
    deployment: Deployment = Deployment()


def read(path, given=None):
    return of_probe(path) if path.suffix == ".jsonl" else Reading(read_rows(path))


def read_rows(path):
    try:
        rows = pd.read_csv(path, dtype={"gpu": str, "version": str})
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: cannot be read") from error
    rows = rows.rename(columns=NAMES).to_dict("records")
    rows = [{k: v for k, v in row.items() if pd.notna(v)} for row in rows]
    if not rows:
        raise ConfigError(f"{path}: holds no run; add a plain one and one that drafts")
    return [of_row(f"{path}, run {n}", row) for n, row in enumerate(rows, 1)]


def of_row(source, row):
    k, batch = int(row["drafts"]), int(row["batch"])
    length = row.get("accepted")
    step_us = 1e3 * row["step_ms"] if "step_ms" in row else None
    if rate := row.get("rate"):
        step_us = 1e6 * batch * (length or 1.0) / rate
    about = {n: row[n] for n in ("model", "gpu", "engine", "version") if n in row}
    tp = {"tp": int(row["tp"])} if "tp" in row else {}
    load = {n: row[n] for n in ("at_once", "drafted", "graphs") if n in row}
    load |= {n: int(row[n]) for n in ("waiting", "requests") if n in row}
    return Run(
        source=source, batch=batch, drafts=k, levels=k, topk=1, width=k + 1,
        step_us=step_us, accept_lengths={k: length} if k and length else {},
        context=row.get("context"), text=row.get("text", ""),
        deployment=Deployment(**about, **tp), load=Load(**load),
    ).checked()  # fmt: skip


def of_probe(path):
    """By the room that the readers replace."""
    runs, left_out = [], {}
    for each in settings(path):
        place = f"{path}, {each.speculation}, batch {each.batch}, wave"
        left_out |= {f"{place} -{n}": why for n, why in enumerate(each.left_out, 1)}
        if not each.is_fixed:
            raise ConfigError(f"{path}: a run needs one K ({each.speculation})")
        runs += [
            Run(
                source=f"{place} {n}",
                batch=own.batch,
                drafts=each.drafts,
                levels=own.levels,
                topk=own.topk,
                width=own.width,
                step_us=own.step_us,
                accept_lengths={own.levels: own.committed} if each.drafts else {},
                context=own.context,
                text=each.texts,
                deployment=Deployment(
                    model=each.server.model,
                    engine=each.server.engine,
                    version=each.server.version,
                ),
            )
            for n, own in enumerate(each.runs, 1)
        ]
    if not (runs or left_out):
        raise ConfigError(f"{path}: holds no run; add a plain one and one that drafts")
    return Reading(runs, [], left_out)


READERS = "evict_profile.served.readers"
if importlib.util.find_spec(READERS) is None:
    sys.modules[READERS] = ModuleType(READERS)
    vars(sys.modules[READERS]).update(Given=Given, read=read)

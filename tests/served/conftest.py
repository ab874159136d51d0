"""Stands in for the room of readers until it is there: a CSV and a probe's file."""

import importlib.util
import sys
from types import ModuleType

import pandas as pd
from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.served.probe.record import read_probe
from evict_profile.served.run import Deployment, Load, Run

NAMES = {"K": "drafts", "step ms": "step_ms", "tok/s": "rate", "prompts": "text"}


class Reading(Struct, frozen=True):
    runs: list[Run]
    notes: list[str] = []
    left_out: dict[str, str] = {}


class Given(Struct, frozen=True):
    drafts: int | None = None
    deployment: Deployment = Deployment()


def read(path, given):
    return Reading(read_runs(path))


def read_runs(path):
    if path.suffix == ".jsonl":
        return of_probe(path)
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
    found = [
        of_row(
            f"{path}, K = {probed.server.drafts}, wave {n}",
            {
                "batch": wave.batch,
                "drafts": probed.server.drafts,
                "rate": wave.tokens_per_s,
                "accepted": wave.accepted,
                "context": wave.context,
                "text": "chat",
            },
        )
        for probed, waves in read_probe(path)
        for n, wave in enumerate(waves, 1)
    ]
    if not found:
        raise ConfigError(f"{path}: holds no run; probe the server")
    return found


READERS = "evict_profile.served.readers"
if importlib.util.find_spec(READERS) is None:
    sys.modules[READERS] = ModuleType(READERS)
    vars(sys.modules[READERS]).update(Given=Given, read=read)

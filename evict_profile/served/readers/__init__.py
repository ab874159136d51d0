"""One registry of readers: any file of runs is read by what its content shows.

The first reader whose signs a text bears reads it, so the readers of narrow signs
stand first, and a CSV, of which any table is one, last.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from evict_profile.errors import ConfigError, DataError
from evict_profile.io import regular
from evict_profile.served.readers import (
    console,
    llama,
    logs,
    metrics,
    probe,
    results,
    table,
)
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.run import Run
from evict_profile.served.table import ServedTable

__all__ = ["READERS", "FileRuns", "read", "read_runs"]


TABLE = re.compile('"schema": *"evict-served-table/')
JSON = re.compile(r"\s*(\{|\[\s*[\]{])")


class Reader(NamedTuple):
    """`name` as users say it; `takes` sees the text, `read` the path, text and K."""

    name: str
    takes: Callable[[str], object]
    read: Callable[[Path, str, int | None], FileRuns]


def _json_of(signs: str) -> Callable[[str], object]:
    """Whether a text is JSON in which all the signs stand."""
    found = [re.compile(rf'"{sign}"\s*:') for sign in signs.split()]
    return lambda text: JSON.match(text) and all(sign.search(text) for sign in found)


def _of_table(path: Path, _: str, given: int | None) -> FileRuns:
    if given is not None:
        raise ConfigError(f"{path}: a table states K; give the file without =K")
    try:
        made = ServedTable.load(path)
    except DataError as error:
        raise ConfigError(str(error)) from error
    return FileRuns([*made.runs], made.left_out)


READERS = (
    Reader("a file of `probe`", re.compile(r'\{"server"').match, probe.read),
    Reader("a table of `import`", TABLE.search, _of_table),
    Reader(
        "responses of vLLM with --per-request-spec-decode-metrics",
        _json_of("acceptance_histogram"),
        metrics.read_responses,
    ),
    Reader("replies of llama-server (JSON)", _json_of("timings"), llama.read_replies),
    Reader(
        "llama-batched-bench (--output-format jsonl)",
        _json_of("pl t_tg"),
        llama.read_batched,
    ),
    Reader("llama-bench (-o json)", _json_of("n_gen avg_ns"), llama.read_bench),
    Reader(
        "the JSON of `vllm bench serve --save-result`, `sglang.bench_serving "
        "--output-file` or `sglang.bench_one_batch`",
        JSON.match,
        results.read,
    ),
    Reader("what those two print", console.START.search, console.read),
    Reader("a saved /metrics", metrics.SIGN.search, metrics.read),
    Reader("a log of SGLang or vLLM", logs.SIGN.search, logs.read),
    Reader("a log of llama-server or llama-cli", llama.EVALUATED.search, llama.read),
    Reader("a CSV", table.takes, table.read),
)

KINDS = (
    "is of no kind that is read; give a CSV with columns batch, K and step ms or "
    "tok/s, a log of SGLang, vLLM or llama.cpp, the JSON of their benchmarks or "
    "responses, a saved /metrics, or a file of `probe`"
)


def read_runs(path: Path, given: int | None = None) -> list[Run]:
    """The runs of a file of any kind.

    Args:
        given: K as it was typed beside the file; None where it was not.

    Raises:
        ConfigError: the file is of no kind that is read, or contradicts `given`.
    """
    return read(path, given).runs


def read(path: Path, given: int | None = None) -> FileRuns:
    text = _text(path)
    if not text.strip():
        raise ConfigError(f"{path}: is empty; save the runs again")
    reader = next((each for each in READERS if each.takes(text)), None)
    if reader is None:
        printed = (why for sign, why in llama.PRINTED.items() if re.search(sign, text))
        raise ConfigError(f"{path}: {next(printed, table.above_header(text) or KINDS)}")
    try:
        found = reader.read(path, text, given)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ConfigError(
            f"{path}: looks like {reader.name}, and holds other values ({reason}); "
            "save it again"
        ) from error
    if not found.runs and not found.left_out:
        raise ConfigError(
            f"{path}: holds no run, though it looks like {reader.name}; save the runs "
            "again"
        )
    return found


def _text(path: Path) -> str:
    try:
        content = regular(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{path}: cannot be read: {reason}; check the path"
        ) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(
            f"{path}: is no text in UTF-8; save it as UTF-8, or give another file"
        )
    return text.replace("\r\n", "\n")

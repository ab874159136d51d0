"""Runs of a server, from a CSV, a benchmark's result or a log.

A step takes TPOT times the tokens that it commits. `sglang.bench_serving --output-file`
and `vllm bench serve --save-result` have it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
from msgspec import Struct

from evict_profile.calibrate.probed import settings
from evict_profile.calibrate.served import ServedRun
from evict_profile.errors import ConfigError
from evict_profile.records import Amount, Count, NotNegative, Positive, parse

Warn = Callable[[str], None]
Facts = dict[str, Any]

_EVALUATED = re.compile(r"(prompt )?eval time =\s*([\d.]+) ms /\s*(\d+) tokens")
_ACCEPTED = re.compile(r"draft acceptance(?: rate)? = [\d.]+ \(\s*(\d+) accepted")


class Row(Struct, frozen=True):
    """A run as a CSV writes it: `drafts` is K, and 0 decodes plainly."""

    batch: Count
    drafts: Amount
    accept_length: Positive | None = None
    tokens_per_s: Positive | None = None
    step_ms: Positive | None = None
    levels: Amount | None = None
    topk: Count = 1
    verified: Count | None = None
    context: NotNegative = 1024.0
    prompts: str | int = ""

    def run(self, source: str) -> ServedRun:
        levels = self.drafts if self.levels is None else self.levels
        width = self.verified or self.drafts + 1
        committed = self.accept_length or float(not self.drafts)
        rate = self.tokens_per_s or 1e3 * self.batch * committed / (self.step_ms or 1.0)
        wrong = ""
        if bool(self.tokens_per_s) == bool(self.step_ms):
            wrong = "give either tokens_per_s or step_ms"
        elif not 1.0 <= committed <= levels + 1:
            wrong = f"accept_length must be 1 to {levels + 1}; give it, or fix K"
        elif (width > 1) != (self.drafts > 0):
            wrong = "verified must be 1 of a plain run, and more of one that drafts"
        if wrong:
            raise ConfigError(f"{source}: {wrong}")
        setting = (self.batch, width, levels, self.topk)
        return ServedRun(*setting, committed, rate, self.context)


def read_runs(path: Path, drafts: int | None, warn: Warn) -> list[ServedRun]:
    """The runs in a file, whose format its content shows.

    `drafts` is K, 0 for plain decoding; a CSV has its own. `warn` takes a sentence on
    what a run does not measure well.
    """
    if path.suffix == ".jsonl" and drafts is None:
        return [run for setting in settings(path) for run in setting.runs]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}; check the path") from error
    except ValueError as error:
        raise ConfigError(
            f"{path}: is no text; give a CSV, or the JSON or log of a benchmark"
        ) from error
    if text.strip() in ("", "[]", "{}"):
        raise ConfigError(
            f"{path}: holds no run; give the file that --output-file or --save-result "
            "wrote, or save the runs again"
        )
    is_json = text.lstrip().startswith("{")
    if (is_json or bool(_EVALUATED.search(text))) == (drafts is None):
        raise ConfigError(
            f"{path}: give K where it is not in the file: {path}=K for JSON and logs, "
            "0 if plain, and in the column drafts of a CSV"
        )
    if drafts is None:
        found, known = _of_csv(text, path), {}
    else:
        found = _of_json(text, path, warn) if is_json else [_of_log(text, path)]
        known = {"drafts": drafts}
    named = [(f"{path}, run {n}", facts | known) for n, facts in enumerate(found, 1)]
    rows = [(parse(Row, facts, name), name) for name, facts in named]
    if any(row.drafts and str(row.prompts).startswith("random") for row, _ in rows):
        warn(f"{path}: prompts are random, so its accepted length is no text's")
    return [row.run(name) for row, name in rows]


def warnings_of(runs: Sequence[ServedRun]) -> Iterator[str]:
    settings = Counter((r.batch, r.width, r.levels, r.topk) for r in runs)
    if 1 in settings.values():
        yield "some settings ran once, so their spread is unknown; run each 3 times"
    plain = {run.batch for run in runs if run.width == 1}
    for batch in sorted({run.batch for run in runs} - plain):
        yield f"no plain run at batch {batch}: another batch's stands in for it"


def _of_csv(text: str, path: Path) -> list[Facts]:
    try:
        rows = pd.read_csv(StringIO(text), comment="#", skipinitialspace=True)
    except ValueError as error:
        raise ConfigError(f"{path}: is no CSV: {str(error).strip()}; fix it") from error
    records = rows.convert_dtypes().astype(object).to_dict("records")
    return [{str(k): v for k, v in row.items() if pd.notna(v)} for row in records]


def _of_json(text: str, path: Path, warn: Warn) -> list[Facts]:
    runs, rest = [], text.strip()
    try:
        while rest:
            found, end = json.JSONDecoder().raw_decode(rest)
            runs.append(_of_result(found, path, warn))
            rest = rest[end:].lstrip()
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: is no result of a serving benchmark: {error}; give the file that "
            "its --output-file or --save-result wrote"
        ) from error
    return runs


def _of_result(found: Facts, path: Path, warn: Warn) -> Facts:
    accepted = found.get("accept_length") or found.get("spec_decode_acceptance_length")
    per_token_ms = found.get("median_tpot_ms") or found.get("mean_tpot_ms") or 0.0
    facts = {
        "batch": found.get("max_concurrency"),
        "accept_length": accepted,
        "prompts": found.get("dataset_name", ""),
    }
    if not facts["batch"]:
        raise ValueError("max_concurrency is not set")
    if done := found.get("completed"):
        tokens = found.get("total_input_tokens", 0)
        facts["context"] = (tokens + found.get("total_output_tokens", 0) / 2) / done
    if per_token_ms > 0.0:
        return {**facts, "step_ms": per_token_ms * (accepted or 1.0)}
    warn(f"{path}: has no TPOT, so prefill is in the time of its steps")
    return {**facts, "tokens_per_s": found.get("output_throughput")}


def _of_log(text: str, path: Path) -> Facts:
    """llama-server's requests as one run; its time excludes each first token."""
    lines = _EVALUATED.findall(text)
    own = [(float(ms), int(tokens)) for prompt, ms, tokens in lines if not prompt]
    tokens, ms = sum(tokens - 1 for _, tokens in own), sum(ms for ms, _ in own)
    steps = tokens - sum(map(int, _ACCEPTED.findall(text)))
    if steps <= 0:
        raise ConfigError(f"{path}: holds no decoded token; log longer replies")
    asked = sum(int(tokens) for prompt, _, tokens in lines if prompt)
    return {
        "batch": 1,
        "accept_length": tokens / steps,
        "step_ms": ms / steps,
        "context": (asked + tokens / 2) / len(own),
    }

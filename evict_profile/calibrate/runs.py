"""Runs of a server, from a probe, a CSV, a benchmark's result or a log.

A step takes TPOT times the tokens that it commits. `sglang.bench_serving --output-file`
and `vllm bench serve --save-result` have it; `sglang.bench_one_batch` times plain
decoding, and a reply of llama-server has its `timings`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from evict_profile.calibrate.probed import PUBLISHED, Load, ProbedSetting, settings
from evict_profile.calibrate.served import ServedRun
from evict_profile.errors import ConfigError
from evict_profile.io import regular
from evict_profile.records import Amount, Count, NotNegative, Positive, parse, replace
from evict_profile.served.probe.server import ServerInfo

Facts = dict[str, Any]

EQUAL = 8
"""Requests from which equal mean lengths are no chance."""

COLUMNS = {
    "K": "drafts",
    "concurrency": "batch",
    "accepted": "accept_length",
    "tokens/s": "tokens_per_s",
    "tok/s": "tokens_per_s",
    "step ms": "step_ms",
}
"""Other names of a CSV's columns."""

_EVALUATED = re.compile(r"(prompt )?eval time =\s*([\d.]+) ms /\s*(\d+) tokens")
_ACCEPTED = re.compile(r"draft acceptance(?: rate)? = [\d.]+ \(\s*(\d+) accepted")


class Row(Load, frozen=True):
    """A run as a CSV writes it: `drafts` is K, and 0 decodes plainly.

    `accept_length` may be missing beside `step_ms`.
    """

    batch: Count
    drafts: Amount
    accept_length: Positive | None = None
    tokens_per_s: Positive | None = None
    step_ms: Positive | None = None
    levels: Amount | None = None
    topk: Count = 1
    verified: Count | None = None
    context: NotNegative = 1024.0
    model: str = ""
    gpu: str = ""
    engine: str = ""
    version: str = ""
    tp: Count | None = None

    def run(self, source: str) -> ServedRun:
        levels = self.drafts if self.levels is None else self.levels
        width = self.verified or self.drafts + 1
        committed = self.accept_length or 1.0
        rate = self.tokens_per_s or 1e3 * self.batch * committed / (self.step_ms or 1.0)
        wrong = ""
        if bool(self.tokens_per_s) == bool(self.step_ms):
            wrong = "give either tokens_per_s or step_ms"
        elif self.drafts and self.tokens_per_s and not self.accept_length:
            wrong = "tokens_per_s with drafts needs accept_length; give it, or step_ms"
        elif not 1.0 <= committed <= levels + 1:
            wrong = f"accept_length must be 1 to {levels + 1}; fix it, or K"
        elif (width > 1) != (self.drafts > 0):
            wrong = "verified must be 1 of a plain run, and more of one that drafts"
        elif not 0.1 <= (step_ms := 1e3 * self.batch * committed / rate) <= 60e3:
            wrong = f"a step of {step_ms:.3g} ms cannot be; fix the unit"
        if wrong:
            raise ConfigError(f"{source}: {wrong}")
        setting = (self.batch, width, levels, self.topk)
        return ServedRun(*setting, committed, rate, self.context)

    def server(self, source: str, run: ServedRun) -> ServerInfo:
        flags = {"gpu": self.gpu, "tp_size": self.tp or 1}
        about = (source, self.engine or "unstated", self.version, self.model)
        return ServerInfo(*about, run.width - 1, run.levels, run.topk, flags)


def read_settings(
    files: Mapping[Path, int | None], optional: bool = False
) -> list[ProbedSetting]:
    """The settings in files, whose formats their content shows.

    Args:
        files: K of each, 0 for plain decoding; None where the file states it, as a CSV
            and a probe do.
        optional: whether the files may hold no run.
    """
    found, rows = list[ProbedSetting](), list[tuple[Row, str]]()
    for path, drafts in files.items():
        if path.suffix == ".jsonl" and drafts is None:
            found.extend(settings(path))
        else:
            rows.extend(_rows(path, drafts))
    found.extend(_grouped(rows))
    if files and not (found or optional):
        names = ", ".join(map(str, files))
        raise ConfigError(f"{names}: holds no run; add a plain one and one that drafts")
    return found


def _grouped(rows: Sequence[tuple[Row, str]]) -> list[ProbedSetting]:
    groups = dict[str, ProbedSetting]()
    for row, name in rows:
        run = row.run(name)
        server = row.server(name.rpartition(", run ")[0], run)
        key = str((run.batch, run.width, run.levels, run.topk, server.deployment))
        first = ProbedSetting(server, run.batch, (), (), PUBLISHED)
        same = groups.get(key, first)
        own = {"runs": (*same.runs, run), "loads": (*same.loads, row)}
        groups[key] = replace(same, **own)
    return list(groups.values())


def _rows(path: Path, drafts: int | None) -> list[tuple[Row, str]]:
    """The runs in a file that no probe wrote, and the name of each."""
    try:
        text = regular(path).read_text(encoding="utf-8-sig")
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
        found = _of_json(text, path) if is_json else [_of_log(text, path)]
        known = {"drafts": drafts}
    named = [(f"{path}, run {n}", facts | known) for n, facts in enumerate(found, 1)]
    return [(parse(Row, facts, name), name) for name, facts in named]


def _of_csv(text: str, path: Path) -> list[Facts]:
    try:
        rows = pd.read_csv(StringIO(text), comment="#", skipinitialspace=True)
    except ValueError as error:
        raise ConfigError(f"{path}: is no CSV: {str(error).strip()}; fix it") from error
    rows = rows.rename(columns=lambda name: COLUMNS.get(str(name).strip(), name))
    records = rows.convert_dtypes().astype(object).to_dict("records")
    return [{str(k): v for k, v in row.items() if pd.notna(v)} for row in records]


def _of_json(text: str, path: Path) -> list[Facts]:
    runs, rest = [], text.strip()
    try:
        while rest:
            found, end = json.JSONDecoder().raw_decode(rest)
            runs.append(_of_result(found, path))
            rest = rest[end:].lstrip()
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: is no result of a serving benchmark: {error}; give the file that "
            "its --output-file or --save-result wrote"
        ) from error
    return runs


def _of_result(found: Facts, path: Path) -> Facts:
    if timings := found.get("timings"):
        return _of_timings([timings], path)
    lengths = ("accept_length", "spec_decode_acceptance_length", "acc_length")
    stated = [found[name] for name in lengths if (found.get(name) or 0.0) > 0.0]
    facts = {
        "batch": found.get("max_concurrency") or found.get("batch_size"),
        "accept_length": stated[0] if stated else None,
        "prompts": found.get("dataset_name", ""),
        "engine": found.get("backend", ""),
        "model": found.get("model_id", ""),
        **_load_of(found),
    }
    if not facts["batch"]:
        raise ValueError("neither max_concurrency nor batch_size is set")
    if done := found.get("completed"):
        tokens = found.get("total_input_tokens", 0)
        facts["context"] = (tokens + found.get("total_output_tokens", 0) / 2) / done
    elif asked := found.get("input_len"):
        facts["context"] = asked + found.get("output_len", 0) / 2
    if step_s := found.get("median_decode_latency"):
        return {**facts, "step_ms": 1e3 * step_s}
    per_token_ms = found.get("median_tpot_ms") or found.get("mean_tpot_ms") or 0.0
    if per_token_ms > 0.0:
        return {**facts, "tokens_per_s": 1e3 * facts["batch"] / per_token_ms}
    facts["has_prefill"] = "last_ttft" not in found
    return {**facts, "tokens_per_s": found.get("output_throughput")}


def _load_of(found: Facts) -> Facts:
    """What a result states of its requests; SGLang and vLLM name the same."""
    done, drafts = found.get("completed"), found.get("spec_decode_num_drafts")
    facts: Facts = {"requests": done, "failed": found.get("failed") or 0}
    if drafts:
        facts["drafted"] = found.get("spec_decode_draft_tokens", 0) / drafts
    if not done:
        return facts
    tokens = [found.get(f"total_{kind}_tokens", 0) for kind in ("input", "output")]
    facts["equal_lengths"] = done >= EQUAL and all(
        each and each % done == 0 for each in tokens
    )
    first_ms, token_ms = (
        found.get(f"mean_{kind}_ms", 0.0) for kind in ("ttft", "tpot")
    )
    if first_ms and token_ms:
        request_ms = first_ms + token_ms * max(tokens[1] / done - 1.0, 0.0)
        facts["prefill"] = first_ms / request_ms
        if duration_s := found.get("duration"):
            facts["at_once"] = done * request_ms / 1e3 / duration_s
    return facts


def _of_log(text: str, path: Path) -> Facts:
    """llama-server's requests as one run."""
    lines = _EVALUATED.findall(text)
    asked = sum(int(tokens) for prompt, _, tokens in lines if prompt)
    accepted = sum(map(int, _ACCEPTED.findall(text)))
    timings = [
        {"predicted_ms": float(ms), "predicted_n": int(tokens)}
        for prompt, ms, tokens in lines
        if not prompt
    ] or [{}]
    timings[0] |= {"prompt_n": asked, "draft_n_accepted": accepted}
    return _of_timings(timings, path)


def _of_timings(requests: Sequence[Facts], path: Path) -> Facts:
    """llama-server's requests as one run; its time excludes each first token."""

    def total(name: str) -> float:
        return float(sum(each.get(name) or 0 for each in requests))

    tokens = total("predicted_n") - len(requests)
    steps = tokens - total("draft_n_accepted")
    if steps <= 0:
        raise ConfigError(f"{path}: holds no decoded token; log longer replies")
    return {
        "batch": 1,
        "accept_length": tokens / steps,
        "step_ms": total("predicted_ms") / steps,
        "context": (total("prompt_n") + tokens / 2) / len(requests),
        "engine": "llama.cpp",
    }

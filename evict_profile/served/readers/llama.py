"""llama.cpp: logs of llama-server and llama-cli, replies' `timings`, llama-bench.

A request's decode time excludes its first token, which prefill gives. Of the tokens
after it, each accepted draft saved a step. llama.cpp states no K: it may stop drafting
below the K that was asked for.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from evict_profile.errors import ConfigError
from evict_profile.records import Facts
from evict_profile.served.readers.facts import (
    Given,
    Reading,
    deployment_of,
    documents,
    drafts_of,
    timed,
)
from evict_profile.served.run import Deployment, Load, Run

EVALUATED = re.compile(r"(prompt )?eval time =\s*([\d.]+) ms /\s*(\d+) (tokens|runs)\b")
_ACCEPTED = re.compile(r"draft acceptance(?: rate)? = [\d.]+ \(\s*(\d+) accepted")
ENGINE = "llama.cpp"


def read(path: Path, text: str, given: Given) -> Reading:
    """All requests of a log as one run. llama-cli counts runs, which are steps."""
    requests, prompts = list[Facts](), 0
    for prompt, ms, count, what in EVALUATED.findall(text):
        if prompt:
            prompts += int(count)
        else:
            tokens = int(count) + (what == "runs")
            requests.append({"predicted_ms": float(ms), "predicted_n": tokens})
    if not requests:
        return Reading([])
    requests[0]["prompt_n"] = prompts
    if counted := _ACCEPTED.findall(text):
        requests[0]["draft_n_accepted"] = sum(map(int, counted))
    return Reading([_run(f"{path}, run 1", requests, path, given)])


def read_replies(path: Path, text: str, given: Given) -> Reading:
    """Each reply is a run."""
    replies = [each["timings"] for each in documents(text, path) if "timings" in each]
    try:
        runs = [
            _run(f"{path}, run {n}", [reply], path, given)
            for n, reply in enumerate(replies, 1)
        ]
    except (AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path}: its timings are not those of llama-server; save the replies again"
        ) from error
    return Reading(runs)


def _run(source: str, requests: Sequence[Facts], path: Path, given: Given) -> Run:
    def total(name: str) -> float:
        return float(sum(each.get(name) or 0 for each in requests))

    tokens = total("predicted_n") - len(requests)
    steps = tokens - total("draft_n_accepted")
    if steps <= 0:
        raise ConfigError(f"{source}: holds no decoded token; let replies be longer")
    drafts = drafts_of(path, None, given)
    stated = any("draft_n_accepted" in each for each in requests)
    us, length = 1e3 * total("predicted_ms"), tokens / steps
    return timed(
        source,
        us / tokens,
        batch=1,
        drafts=drafts,
        accept_lengths={drafts: length} if stated and (drafts or length > 1.0) else {},
        context=(total("prompt_n") + tokens / 2) / len(requests) or None,
        deployment=deployment_of(path, Deployment(engine=ENGINE), given),
        load=Load(requests=len(requests), steps=steps if stated else None),
    )


def read_bench(path: Path, text: str, given: Given) -> Reading:
    """Rows that decode, each a plain run of one request; others time prompts."""
    rows = enumerate(documents(text, path), 1)
    decoding = [(n, row) for n, row in rows if row.get("n_gen") and not row["n_prompt"]]
    if not decoding:
        raise ConfigError(
            f"{path}: times prompts alone; run llama-bench with -n 128, which decodes"
        )
    drafts = drafts_of(path, 0, given)
    try:
        return Reading(
            [
                timed(
                    f"{path}, run {n}",
                    row["avg_ns"] / 1e3 / row["n_gen"],
                    batch=1,
                    drafts=drafts,
                    context=(row.get("n_depth") or 0) + row["n_gen"] / 2,
                    deployment=deployment_of(path, _benched(row), given),
                )
                for n, row in decoding
            ]
        )
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: is no result of llama-bench ({error}); save it with -o json"
        ) from error


def _benched(row: Facts) -> Deployment:
    model = str(row.get("model_filename") or "")
    return Deployment(
        model=Path(model).stem,
        gpu=str(row.get("gpu_info") or ""),
        engine=ENGINE,
        version=str(row.get("build_number") or ""),
    )

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
from evict_profile.served.readers import facts
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.run import Deployment, Load, Run

EVALUATED = re.compile(r"(prompt )?eval time =\s*([\d.]+) ms /\s*(\d+) (tokens|runs)\b")
_ACCEPTED = re.compile(
    r"draft acceptance(?: rate)? = [\d.]+ \(\s*(\d+) accepted /\s*(\d+) generated"
)
ENGINE = "llama.cpp"


def read(path: Path, text: str, given: int | None) -> FileRuns:
    """All requests of a log as one run. llama-cli counts runs, which are steps."""
    lines = EVALUATED.findall(text)
    requests: list[Facts] = [
        {"predicted_ms": float(ms), "predicted_n": int(count) + (what == "runs")}
        for prompt, ms, count, what in lines
        if not prompt
    ]
    if not requests:
        return FileRuns([])
    requests[0]["prompt_n"] = sum(int(count) for prompt, _, count, _ in lines if prompt)
    if accepted := _ACCEPTED.findall(text):
        counts = zip(*accepted, strict=True)
        for name, own in zip(("draft_n_accepted", "draft_n"), counts, strict=True):
            requests[0][name] = sum(map(int, own))
    return FileRuns([_run(requests, path, 1, given)])


def read_replies(path: Path, text: str, given: int | None) -> FileRuns:
    """Each reply is a run."""
    replies = [d["timings"] for d in facts.documents(text, path) if "timings" in d]
    return FileRuns([_run([each], path, n, given) for n, each in enumerate(replies, 1)])


def _run(requests: Sequence[Facts], path: Path, number: int, given: int | None) -> Run:
    def total(name: str) -> float:
        return float(sum(each.get(name) or 0 for each in requests))

    source, tokens = f"{path}, run {number}", total("predicted_n") - len(requests)
    steps = tokens - total("draft_n_accepted")
    if steps <= 0:
        raise ConfigError(f"{source}: holds no decoded token; let replies be longer")
    drafts, length = facts.drafts_of(path, None, given), tokens / steps
    if (drafted := total("draft_n") / steps) > drafts + 0.5:
        raise ConfigError(
            f"{source}: {drafted:.1f} tokens are drafted a step, and K = {drafts} was "
            "given; give the K of that server"
        )
    stated = any("draft_n_accepted" in each for each in requests)
    return facts.timed(
        source,
        1e3 * total("predicted_ms") / tokens,
        batch=1,
        drafts=drafts,
        accept_lengths={drafts: length} if stated and (drafts or length > 1.0) else {},
        context=(total("prompt_n") + tokens / 2) / len(requests),
        deployment=Deployment(engine=ENGINE),
        load=Load(requests=len(requests), steps=steps if stated else None),
    )


def read_bench(path: Path, text: str, given: int | None) -> FileRuns:
    """Rows that decode, each a plain run of one request; others time prompts."""
    runs = [
        facts.timed(
            f"{path}, run {n}",
            row["avg_ns"] / 1e3 / row["n_gen"],
            batch=1,
            drafts=facts.drafts_of(path, 0, given),
            context=(row.get("n_depth") or 0) + row["n_gen"] / 2,
            deployment=_benched(row),
        )
        for n, row in enumerate(facts.documents(text, path), 1)
        if row["n_gen"] and not row["n_prompt"]
    ]
    if not runs:
        raise ConfigError(
            f"{path}: times prompts alone; run llama-bench with -n 128, which decodes"
        )
    return FileRuns(runs)


def _benched(row: Facts) -> Deployment:
    names = ("model_filename", "gpu_info", "build_number")
    model, gpu, version = (str(row.get(name) or "") for name in names)
    return Deployment(model=Path(model).stem, gpu=gpu, engine=ENGINE, version=version)

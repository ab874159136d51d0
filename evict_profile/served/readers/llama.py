"""llama.cpp: logs of llama-server and llama-cli, replies' `timings`, its benchmarks.

A request's decode time excludes its first token, which prefill gives. Of the tokens
after it, each accepted draft saved a step. llama.cpp may stop drafting below the K that
was asked for: K is what a log's first lines state, or what every request drafted.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from evict_profile.errors import ConfigError
from evict_profile.records import Facts, replace
from evict_profile.served.readers import facts
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.run import Deployment, Load, Run

EVALUATED = re.compile(r"(prompt )?eval time =\s*([\d.]+) ms /\s*(\d+) (tokens|runs)\b")
_ACCEPTED = re.compile(
    r"draft acceptance(?: rate)? = [\d.]+ \(\s*(\d+) accepted /\s*(\d+) generated"
)
_START = re.compile(r"load_model: loading model '([^']+)'")
_BUILD = re.compile(r"build(?:_info: b|: )(\d+)(?:-| \()(\w+)")
_DRAFTING = re.compile(r"speculative implementation|draft model|draft acceptance")
_DRAFTS = re.compile(
    r"(?:--(?:spec-draft-n-max|draft-max|draft-n|draft)[ =]|- n_max=(?=.*p_min=))(\d+)"
)
_SLOT = re.compile(
    r"(?:\b(\d+)\.(\d\d)\.(\d{3})\.\d{3} .*)?"
    r"\bslot +(launch_slot_|print_timing|release): id +(\d+) \|"
)
PRINTED = {
    r"(?m)^\| *model *\|.* t/s *\|": "is a table of llama-bench; give its -o json",
    r"(?m)^\| *PP *\| *TG *\| *B *\|": "is a table of llama-batched-bench; "
    "give --output-format jsonl",
}
"""Signs of tables that are not read, and what to give in their place."""

ENGINE = "llama.cpp"
MOSTLY = 0.8
"""Least share of a log's time in which its batch ran."""
EXACT = 0.02
"""Share of drafts that may lack to K at every step, beside those of a reply's last."""
BENCHED = ("model_filename", "build_number", "build_commit", "gpu_info")
ASSUMED = "how many requests ran at once is not stated, and 1 is assumed"


def read(path: Path, text: str, given: int | None) -> FileRuns:
    """All requests of a log as one run. llama-cli counts runs, which are steps."""
    starts = [each for each in _START.split(text)[::2] if EVALUATED.search(each)]
    if len(starts) > 1:
        raise ConfigError(
            f"{path}: holds {len(starts)} starts of the server; give each its own file"
        )
    if not (requests := _requests(text)):
        return FileRuns([])
    model, build = _START.search(text), _BUILD.search(text)
    known = _deployment(model[1] if model else "", *(build.groups() if build else ()))
    batch, mean = _running(path, text)
    run = _run(requests, path, 1, given, known, _stated(text), batch, mean)
    note = ASSUMED if len(requests) > 1 and not _SLOT.search(text) else ""
    if mean:
        note = f"batch {batch} is by its slots: {mean:.2f} decoded at once in the mean"
    return FileRuns([run], notes=[f"{path}: {note}"] * bool(note))


def _requests(text: str) -> list[Facts]:
    """Requests by the names of a reply; the first states the prompts of all."""
    lines = EVALUATED.findall(text)
    found: list[Facts] = [
        {"predicted_ms": float(ms), "predicted_n": int(count) + (what == "runs")}
        for prompt, ms, count, what in lines
        if not prompt
    ]
    drafted = [[int(n) for n in counts] for counts in _ACCEPTED.findall(text)]
    if len(drafted) != len(found):  # Some requests drafted nothing.
        drafted = [[*map(sum, zip(*drafted, strict=True))]] if drafted else []
    for request, counts in zip(found, drafted, strict=False):
        request["draft_n_accepted"], request["draft_n"] = counts
    prompts = [(int(count), float(ms)) for prompt, ms, count, _ in lines if prompt]
    first: Facts = {"prompt_n": sum(n for n, _ in prompts)}
    first["prompt_ms"] = sum(ms for _, ms in prompts)
    return [found[0] | first, *found[1:]] if found else []


def _stated(text: str) -> int | None:
    """K by the flags and the first lines of a log; 0 if it starts without a draft."""
    if found := _DRAFTS.findall(text):
        return int(found[-1])
    return 0 if _START.search(text) and not _DRAFTING.search(text) else None


def _running(path: Path, text: str) -> tuple[int, float | None]:
    """The batch, and the mean of requests at once; 1 and None of one after another."""
    seconds, slots = _seconds(text), {line[5] for line in _SLOT.finditer(text)}
    if len(slots) < 2 or [*seconds] == [1]:
        return 1, None
    total_s = sum(seconds.values()) or math.nan
    batch = max(seconds, key=seconds.__getitem__, default=0)
    if not seconds.get(batch, 0.0) >= MOSTLY * total_s:
        ran = ", ".join(f"{n} for {seconds[n] / total_s:.0%}" for n in sorted(seconds))
        has_times = not math.isnan(total_s)
        raise ConfigError(
            f"{path}: {len(slots)} slots decoded, and no number of them for "
            f"{MOSTLY:.0%} of "
            + (f"the time ({ran})" if has_times else "a stated time")
            + "; let as many run throughout"
            + " and log with --log-timestamps" * (not has_times)
            + ", or give batch and step ms in a CSV"
        )
    return batch, sum(n * each_s for n, each_s in seconds.items()) / total_s


def _seconds(text: str) -> dict[int, float]:
    """How long 1, 2 and so on requests ran at once; nan where lines have no times."""
    seconds, running, was = defaultdict[int, float](float), set[str](), math.nan
    for line in _SLOT.finditer(text):
        minutes, s, ms, event, slot = line.groups()
        now = 60.0 * int(minutes) + int(s) + int(ms) / 1e3 if minutes else math.nan
        if running:
            seconds[len(running)] += now - was
        was = now
        if event == "launch_slot_":
            running.add(slot)
        elif event == "release":
            running.discard(slot)
    return seconds


def read_replies(path: Path, text: str, given: int | None) -> FileRuns:
    """Each reply is a run."""
    replies = [d["timings"] for d in facts.documents(text, path) if "timings" in d]
    known = _deployment("")
    runs = [_run([each], path, n, given, known) for n, each in enumerate(replies, 1)]
    return FileRuns(runs, notes=[f"{path}: {ASSUMED}"])


def _run(
    requests: Sequence[Facts],
    path: Path,
    number: int,
    given: int | None,
    deployment: Deployment,
    stated: int | None = None,
    batch: int = 1,
    at_once: float | None = None,
) -> Run:
    def total(name: str) -> float:
        return float(sum(each.get(name) or 0 for each in requests))

    source, tokens = f"{path}, run {number}", total("predicted_n") - len(requests)
    steps = tokens - total("draft_n_accepted")
    if steps <= 0:
        raise ConfigError(f"{source}: holds no decoded token; let replies be longer")
    stated = _drafted(requests) if stated is None else stated
    drafts, length = facts.drafts_of(path, stated, given), tokens / steps
    counts = any("draft_n_accepted" in each for each in requests)
    stalls = ((at_once or 1.0) - 1.0) * total("prompt_ms") / total("predicted_ms")
    load = Load(requests=len(requests), at_once=at_once, stalls=min(stalls, 1.0))
    if counts:
        load = replace(load, steps=steps, drafted=total("draft_n") / steps)
    return facts.timed(
        source,
        1e3 * total("predicted_ms") / tokens,
        batch=batch,
        drafts=drafts,
        accept_lengths={drafts: length} if counts and (drafts or length > 1.0) else {},
        context=(total("prompt_n") + tokens / 2) / len(requests),
        deployment=deployment,
        load=load,
    )


def _drafted(requests: Sequence[Facts]) -> int | None:
    """K that each request drafted at every step; None where they drafted fewer."""
    if not all(each.get("draft_n") for each in requests):
        return None
    drafted = [
        (each["draft_n"], max(each["predicted_n"] - 1 - each["draft_n_accepted"], 1))
        for each in requests
    ]
    k = round(max(count / steps for count, steps in drafted))
    lacking = ((k * steps - count, steps) for count, steps in drafted)
    is_k = all(n <= max(k, EXACT * k * steps) for n, steps in lacking)
    return k if is_k else None


def read_batched(path: Path, text: str, given: int | None) -> FileRuns:
    """Rows of llama-batched-bench: plain steps of `pl` sequences."""
    runs = [
        facts.timed(
            f"{path}, run {n}",
            1e6 * row["t_tg"] / row["tg"],
            batch=row["pl"],
            drafts=facts.drafts_of(path, 0, given),
            context=row["pp"] + row["tg"] / 2,
            deployment=_deployment(""),
        )
        for n, row in enumerate(facts.documents(text, path), 1)
        if row["tg"]
    ]
    return FileRuns(runs)


def read_bench(path: Path, text: str, given: int | None) -> FileRuns:
    """Rows that decode, each a plain run of one request; others time prompts."""
    runs = [
        facts.timed(
            f"{path}, run {n}",
            row["avg_ns"] / 1e3 / row["n_gen"],
            batch=1,
            drafts=facts.drafts_of(path, 0, given),
            context=(row.get("n_depth") or 0) + row["n_gen"] / 2,
            deployment=_deployment(*(str(row.get(name) or "") for name in BENCHED)),
        )
        for n, row in enumerate(facts.documents(text, path), 1)
        if row["n_gen"] and not row["n_prompt"]
    ]
    if not runs:
        raise ConfigError(
            f"{path}: times prompts alone; run llama-bench with -n 128, which decodes"
        )
    return FileRuns(runs)


def _deployment(
    model: str, build: str = "", commit: str = "", gpu: str = ""
) -> Deployment:
    version = f"b{build}-{commit}" if commit else build  # As /props states it.
    name = Path(model).name.removesuffix(".gguf")
    return Deployment(model=name, gpu=gpu, engine=ENGINE, version=version)

"""What speaks against runs of a server, before a decision rests on them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.server_log import ServerLog
from evict_profile.calibrate.probed import (
    PUBLISHED,
    PUBLISHED_SD,
    REPEATED,
    Load,
    ProbedSetting,
)
from evict_profile.records import differences
from evict_profile.served.probe.record import near
from evict_profile.table.overheads import TWO_SIDED

UNUSUAL, ALL = 0.35, 0.97
"""Acceptance of a first draft that 97 % of 324 published settings exceed, and the share
of drafts from which nearly all are accepted (benchmarks/served/data)."""

SYNTHETIC = ("random", "prefix_repetition", "generated-shared-prefix")
PREFILL, FULL, WAVES, LONGER = 0.1, 0.8, 4, 1.25
"""Prefill's share of a request, requests that ran over those asked for, all requests
over concurrency, and one context over another: a finding lies beyond."""

SAID = {
    "text": "prompts are {}, so {:.2f} accepted tokens are of no text that is served; "
    "run prompts of your own",
    "lengths": "all requests have one input and one output length, as of synthetic "
    "text; run prompts of your own, and let replies end",
    "rejected": "{:.2f} tokens are accepted, and 97 % of published settings accept "
    "more than {:.2f}; check the text, and the drafter's model",
    "copied": "{:.2f} tokens are accepted, nearly all that are drafted, as of replies "
    "that repeat themselves; read some, and run other prompts",
    "K": "K is not the same at each step: {}; serve one K alone, and give that K",
    "plain": "no plain run has this batch, so the speed-up is unknown; run one",
    "unlike": "{}; let runs differ in K alone",
    "context": "mean contexts are {:.0f} tokens plain and {:.0f} drafting; run the "
    "same prompts and lengths of replies",
    "graphs": "{}",
    "failed": "{} requests failed; see the server's log",
    "full": "{:.1f} requests ran at once in the mean; send at least {}, without "
    "--request-rate",
    "few": "{} requests leave the last batches half empty; send at least {}",
    "wall": "no time of a token is stated, so prefill is in the time of its steps; "
    "save TPOT, or let replies be longer",
    "prefill": "{:.0%} of a request's time passes before its first token, so a step "
    "1.5 times as fast shows as {:.2f} times in throughput; compare TPOT, or let "
    "replies be longer",
    "repeats": "repeated steps take {:.2f} to {:.2f} ms; let nothing else use the "
    "machine, and run again",
    "noise": "{:.2f} times plain decoding is within {:.0%}, the noise of such runs; "
    "repeat both",
}
"""What is said of each kind of finding, the worst kind first."""

STATED = {
    "the text": "prompts",
    "the temperature": "temperature",
    "the engine's version": "version",
    "requests at once": "at_once",
    "prefill": "prefill",
}
"""What a published run may leave unsaid."""

Found = tuple[str, float, tuple[Any, ...]]
"""Its kind, how bad it is, and its numbers."""


def findings(
    settings: Sequence[ProbedSetting], logs: Sequence[ServerLog]
) -> Iterator[str]:
    """A line of each kind: its worst setting, and how many others there are."""
    found = [
        (f"{each.speculation}, batch {each.batch}", *one)
        for each in settings
        for one in (*_drafts(each, settings), *_requests(each))
    ]
    found += [
        (log.name, "graphs", 1.0, (why,)) for log in logs for why in log.slow_graphs()
    ]
    for kind, said in SAID.items():
        if own := sorted((f for f in found if f[1] == kind), key=lambda f: -f[2]):
            more = f" and {len(own) - 1} more" if own[1:] else ""
            yield f"{own[0][0]}{more}: {said.format(*own[0][3])}"
    if once := sum(len(each.runs) == 1 for each in settings):
        one, three = (TWO_SIDED * PUBLISHED_SD * (2 / n) ** 0.5 for n in (1, 3))
        yield (
            f"{once} of {len(settings)} settings ran once, so a speed-up is known to "
            f"{one:.0%}; run each 3 times for {three:.0%}"
        )


def unknown(
    settings: Sequence[ProbedSetting], logs: Sequence[ServerLog]
) -> Iterator[str]:
    """What the files do not state, so that nothing could be found of it."""
    loads = [load for each in settings for load in each.loads]
    for what, name in STATED.items():
        if any(getattr(load, name) in ("", None) for load in loads):
            yield what
    if not logs:
        yield "CUDA graphs (a server's log states them)"


def _drafts(each: ProbedSetting, settings: Sequence[ProbedSetting]) -> Iterator[Found]:
    """Of a setting that drafts, beside plain decoding at its batch."""
    if not each.server.drafts:
        return
    load, k, length = next(iter(each.loads), Load()), each.drafts, each.committed
    if (prompts := str(load.prompts)).startswith(SYNTHETIC):
        yield "text", 1.0, (prompts, length)
    least = float(of_rate(UNUSUAL).committed[min(k, 16)])
    if each.states_accepted and length < least:
        yield "rejected", least - length, (length, least)
    if length - 1.0 > ALL * each.server.levels:
        yield "copied", length, (length,)
    drafted = load.drafted or k
    if not (each.is_fixed and near(drafted, k)):
        said = f"{drafted:.2f} drafts" if load.drafted else each.speculation
        yield "K", 1.0, (said,)
    same = [s for s in settings if not s.server.drafts and s.batch == each.batch]
    if same:
        closest = min(same, key=lambda plain: len(_unlike(plain, each)))
        yield from _beside(each, closest)
    else:
        yield "plain", 1.0, ()


def _beside(each: ProbedSetting, plain: ProbedSetting) -> Iterator[Found]:
    if unlike := _unlike(plain, each):
        yield "unlike", 1.0, ("; ".join(unlike),)
    contexts = [float(np.mean([run.context for run in s.runs])) for s in (plain, each)]
    if max(contexts) > LONGER * min(contexts):
        yield "context", max(contexts) / min(contexts), tuple(contexts)
    steps = [s.step_us for s in (plain, each)]
    gain = each.committed * steps[0].value / steps[1].value
    noise = float(np.hypot(*(np.log(step.high / step.value) for step in steps)))
    if each.states_accepted and abs(np.log(gain)) < noise < np.inf:
        yield "noise", noise, (gain, noise)


def _unlike(plain: ProbedSetting, drafting: ProbedSetting) -> list[str]:
    """The differences in what both state of the server and its requests."""
    one, other = _stated(plain), _stated(drafting)
    both = ({k: side[k] for k in one.keys() & other.keys()} for side in (one, other))
    return differences(*both, sides=("plain", "drafting"))


def _stated(each: ProbedSetting) -> dict[str, Any]:
    load, unstated = next(iter(each.loads), Load()), ("", None, "unstated", PUBLISHED)
    about = {"prompts": load.prompts or each.texts, "temperature": load.temperature}
    about |= each.server.deployment
    return {name: what for name, what in about.items() if what not in unstated}


def _requests(each: ProbedSetting) -> Iterator[Found]:
    """Of the requests of each run."""
    for load in each.loads:
        share, at_once, most = load.prefill or 0.0, load.at_once, WAVES * each.batch
        if load.equal_lengths:
            yield "lengths", 1.0, ()
        if load.failed:
            yield "failed", load.failed, (load.failed,)
        if at_once and at_once < FULL * each.batch:
            yield "full", 1.0 - at_once / each.batch, (at_once, most)
        elif not at_once and 0 < (load.requests or 0) < most:
            yield "few", 1.0, (load.requests, most)
        if load.has_prefill:
            yield "wall", 1.0, ()
        if share > PREFILL:
            yield "prefill", share, (share, 1.0 / (share + (1.0 - share) / 1.5))
    steps = [run.step_us / 1e3 for run in each.runs]
    if max(steps) > REPEATED * min(steps):
        yield "repeats", max(steps) / min(steps), (min(steps), max(steps))

"""What speaks against runs of a server, before a decision rests on them.

A speed-up says something of drafting only if both runs differ in nothing else. A queue
makes throughput measure admission, unlike prompts change the accepted length, and text
that repeats itself is accepted without a drafter's merit. One bound is physical: n
plain steps verify n tokens, whatever experts these activate, so a longer step spends
its time elsewhere.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evict_profile.records import Facts, differences
from evict_profile.served.probe.record import near
from evict_profile.served.run import SPECULATION_FLAGS, Load, Run
from evict_profile.served.setting import (
    FEWEST,
    ONE_RUN_SD,
    REPEATED,
    SAME_CONTEXT,
    TWO_SIDED,
    Setting,
    settings_of,
)

UNUSUAL, GROWTH, ALL = 0.35, 1.09, 0.97
"""Acceptance of a first draft that 97 % of 324 published settings exceed, growth of
rejection from one draft to the next, and the share of drafts from which nearly all are
accepted (benchmarks/served/data)."""

UNLIKE = 1.2
"""Ratio of two accepted lengths of one K, above which they are of different texts."""

SYNTHETIC = ("random", "prefix_repetition", "generated-shared-prefix")
PREFILL, FULL, WAVES, KV_FULL = 0.1, 0.8, 4, 0.9
"""Prefill's share of a request, requests that ran over those that were asked for, all
requests over the batch, and the used share of a KV cache: findings lie beyond."""

SENTENCES = {
    "faster": "a step that verifies {} tokens takes {:.2f} plain steps; {}",
    "K": "K is not the same at each step: {:.2f} tokens are drafted; serve one K alone",
    "queue": "{} requests waited while {:.0f} ran, so throughput measures the queue; "
    "send fewer at once",
    "kv": "{:.0%} of the KV cache was in use, so requests wait or are put back, and "
    "throughput measures the queue; send fewer at once",
    "batches": "{:.1f} requests ran at once plain and {:.1f} drafting, so the batches "
    "differ; let as many run in both",
    "unlike": "{}; let runs differ in K alone",
    "context": "mean contexts are {:.0f} tokens plain and {:.0f} drafting; run the "
    "same prompts and lengths of replies",
    "text": "prompts are {}, so accepted lengths are of no text that is served; run "
    "prompts of your own",
    "lengths": "all requests have one input and one output length, as of synthetic "
    "text; run prompts of your own, and let replies end",
    "copied": "{:.2f} tokens are accepted, nearly all that are drafted, as of replies "
    "that repeat themselves; read some, and run other prompts",
    "rejected": "{:.2f} tokens are accepted, and 97 % of published settings accept "
    "more than {:.2f}; check the text, and the drafter's model",
    "texts": "{} commits {:.2f} tokens and {} {:.2f}, so one speed-up is of neither; "
    "read the speed-up of each",
    "plain": "no plain run has this batch{}, so the speed-up is unknown; run one",
    "slow": "a step that verifies {} tokens takes {:.1f} plain steps: experts cannot "
    "cause that, since {} plain steps verify as many; look at CUDA graphs, the "
    "drafter's time and the host's",
    "graphs": "{}",
    "left out": "{} of {} runs were left out, {} of them because {}",
    "failed": "{} requests failed; see the server's log",
    "full": "{:.1f} requests ran at once in the mean; send at least {}, without "
    "--request-rate",
    "few": "{} requests leave the last batches half empty; send at least {}",
    "wall": "no time of a token is stated, so prefill is in the time of its steps; "
    "save TPOT, or let replies be longer",
    "prefill": "{:.0%} of a request's time passes before its first token, so a step "
    "1.5 times as fast shows as {:.2f} times in throughput; compare TPOT, or let "
    "replies be longer",
    "stalls": "prompts of other requests take up to {:.0%} of the time of these steps; "
    "run short prompts, or long replies",
    "one": "a plain step takes {:.1f} times that of batch {}, longer than one request "
    "after another; tok/s is of all requests together, so multiply that of one",
    "repeats": "repeated steps take {:.2f} to {:.2f} ms; let nothing else use the "
    "machine, and run again",
    "noise": "{:.2f} times plain decoding is within {:.0%}, the noise of such runs; "
    "repeat both",
    "once": "{} of {} settings ran once, so a speed-up is known to {:.0%}; run each 3 "
    "times for {:.0%}",
}
"""What is said of each kind, the worst kind first."""

REMARKS = ("noise", "once")
"""Kinds that are no fault of a run, and that an interval holds already."""

STATED: dict[str, Callable[[Run], object]] = {
    "the text": lambda run: run.text,
    "the temperature": lambda run: run.load.temperature,
    "the engine's version": lambda run: run.deployment.version,
    "the context": lambda run: run.context,
    "requests at once": lambda run: run.load.at_once,
    "requests that waited": lambda run: run.load.waiting,
    "prefill": lambda run: run.load.prefill,
    "CUDA graphs (a server's log states them)": lambda run: (
        None if run.load.graphs is None else "whole, or why not"
    ),
}
"""What a run may leave unsaid."""


class Finding(NamedTuple):
    kind: str
    sentence: str


class _Found(NamedTuple):
    """One finding of one place, before findings of its kind are counted."""

    kind: str
    badness: float
    numbers: tuple[Any, ...]
    place: str = ""


def findings(runs: Sequence[Run], left_out: Mapping[str, str]) -> list[Finding]:
    """One finding of each kind: its worst place, and how many others there are.

    Args:
        left_out: why other runs were left out, by source.
    """
    settings = settings_of(runs)
    found = [
        one._replace(place=each.name)
        for each in settings
        for one in (*_of_setting(each), *_of_drafts(each, settings))
    ]
    found += [
        one._replace(place=run.source if not run.step_us else _place(run))
        for run in runs
        for one in (*_of_load(run), *_of_text(run))
    ]
    found += [*_of_left_out(len(runs), left_out), *_once(settings)]
    return [
        _worst(own)
        for kind in SENTENCES
        if (own := [each for each in found if each.kind == kind])
    ]


def unknown(runs: Sequence[Run]) -> list[str]:
    """What some run does not state, so that nothing could be found of it."""
    return [
        what
        for what, stated in STATED.items()
        if any(stated(run) in ("", None) for run in runs)
    ]


def is_fault(finding: Finding) -> bool:
    return finding.kind not in REMARKS


def _worst(found: Sequence[_Found]) -> Finding:
    worst = max(found, key=lambda each: each.badness)
    others = len({each.place for each in found}) - 1
    more = f" and {others} more" * (others > 0)
    where = f"{worst.place}{more}: " * bool(worst.place)
    return Finding(worst.kind, where + SENTENCES[worst.kind].format(*worst.numbers))


def _place(run: Run) -> str:
    return Setting((run,)).name


def _of_setting(each: Setting) -> Iterator[_Found]:
    steps_ms = [run.step_us / 1e3 for run in each.runs if run.step_us]
    texts = {run.text for run in each.runs}
    lengths = [(n, run.text) for run in each.runs if (n := run.accept_length)]
    if len(texts) > 1 and lengths:
        (least, poor), (most, rich) = min(lengths), max(lengths)
        if most > UNLIKE * least:
            yield _Found("texts", most / least, (rich, most, poor, least))
    if len(texts) == 1 and max(steps_ms) > REPEATED * min(steps_ms):
        ends = min(steps_ms), max(steps_ms)
        yield _Found("repeats", ends[1] / ends[0], ends)


def _of_drafts(each: Setting, settings: Sequence[Setting]) -> Iterator[_Found]:
    """Of a setting that drafts, beside plain decoding at its batch."""
    plain = [other for other in settings if not other.drafts]
    if not each.drafts:
        yield from _of_one_request(each, plain)
        return
    if same := [other for other in plain if other.batch == each.batch]:
        yield from _beside(each, min(same, key=lambda other: _apart(other, each)))
    else:
        ran = ", ".join(str(other.batch) for other in plain)
        yield _Found("plain", 1.0, (f" (plain decoding ran {ran})" * bool(ran),))


def _of_one_request(each: Setting, plain: Sequence[Setting]) -> Iterator[_Found]:
    """Of a plain step that is longer than its requests one after another."""
    first = min(plain, key=lambda other: other.batch)
    ratio = each.step_us.low / first.step_us.high
    if ratio > each.batch / first.batch:
        yield _Found("one", ratio, (each.ratio_to(first).value, first.batch))


def _beside(each: Setting, plain: Setting) -> Iterator[_Found]:
    if unlike := _unlike(plain, each):
        yield _Found("unlike", 1.0, ("; ".join(unlike),))
    if (apart := _apart(plain, each)) > math.log(SAME_CONTEXT):
        yield _Found("context", apart, (plain.context, each.context))
    at_once = [_mean_at_once(one) for one in (plain, each)]
    if all(at_once) and max(at_once) > SAME_CONTEXT * min(at_once):
        yield _Found("batches", max(at_once) / min(at_once), tuple(at_once))
    yield from _of_ratio(each, plain)


def _of_ratio(each: Setting, plain: Setting) -> Iterator[_Found]:
    ratio, length = each.ratio_to(plain), each.accept_length
    if ratio.value < 1.0:
        what = "repeat both runs, or look for a missing accepted length"
        yield _Found("faster", 1.0 / ratio.value, (each.width, ratio.value, what))
    if ratio.value > each.width:
        badness = ratio.value / each.width
        yield _Found("slow", badness, (each.width, ratio.value, each.width))
    if length and ratio.low < length.value < ratio.high:
        gain, noise = length.value / ratio.value, ratio.high / ratio.value - 1.0
        yield _Found("noise", noise, (gain, noise))


def _apart(one: Setting, other: Setting) -> float:
    """The log of one mean context over another; 0 where either is not stated."""
    if not (one.context and other.context):
        return 0.0
    return abs(math.log(one.context / other.context))


def _mean_at_once(setting: Setting) -> float:
    known = [run.load.at_once for run in setting.runs if run.load.at_once]
    return float(np.mean(known)) if known else 0.0


def _unlike(plain: Setting, drafting: Setting) -> list[str]:
    """The differences in what both state of the server and its requests."""
    one, other = _stated(plain), _stated(drafting)
    both = ({k: side[k] for k in one.keys() & other.keys()} for side in (one, other))
    return differences(*both, sides=("plain", "drafting"))


def _stated(setting: Setting) -> Facts:
    texts = sorted({run.text for run in setting.runs} - {""})
    first = setting.runs[0]
    facts = {
        n: v for n, v in first.deployment.stated.items() if n not in SPECULATION_FLAGS
    }
    facts["temperature"], facts["text"] = first.load.temperature, ", ".join(texts)
    return {name: fact for name, fact in facts.items() if fact not in (None, "")}


def _of_text(run: Run) -> Iterator[_Found]:
    """Of the text of a run that drafts, by its name and by what is accepted."""
    length, load = run.accept_length, run.load
    if not run.drafts:
        return
    if run.text.startswith(SYNTHETIC):
        yield _Found("text", 1.0, (run.text,))
    if load.drafted is not None and not near(load.drafted, run.drafts):
        yield _Found("K", 1.0, (load.drafted,))
    if length is None:
        return
    if length - 1.0 > ALL * run.levels:
        yield _Found("copied", length, (length,))
    if length < (least := _unusual_length(run.levels)):
        yield _Found("rejected", least - length, (length, least))


def _unusual_length(levels: int) -> float:
    chances = np.maximum(1.0 - (1.0 - UNUSUAL) * GROWTH ** np.arange(levels), 0.0)
    return float(1.0 + np.cumprod(chances).sum())


def _of_load(run: Run) -> Iterator[_Found]:
    """Of a run's requests."""
    load, batch = run.load, run.batch
    if load.waiting:
        ran = load.at_once or batch
        yield _Found("queue", load.waiting, (load.waiting, ran))
    elif (load.kv_usage or 0.0) > KV_FULL:
        yield _Found("kv", load.kv_usage or 0.0, (load.kv_usage,))
    if load.graphs:
        yield _Found("graphs", 1.0, (load.graphs,))
    if load.equal_lengths:
        yield _Found("lengths", 1.0, ())
    if load.failed:
        yield _Found("failed", load.failed, (load.failed,))
    yield from _of_filling(load, batch)
    if load.has_prefill:
        yield _Found("wall", 1.0, ())
    if load.stalls > PREFILL:
        yield _Found("stalls", load.stalls, (load.stalls,))
    if (share := load.prefill or 0.0) > PREFILL:
        shown = 1.0 / (share + (1.0 - share) / 1.5)
        yield _Found("prefill", share, (share, shown))


def _of_filling(load: Load, batch: int) -> Iterator[_Found]:
    most = WAVES * batch
    if load.at_once and load.at_once < FULL * batch:
        yield _Found("full", 1.0 - load.at_once / batch, (load.at_once, most))
    elif not load.at_once and batch > 1 and 0 < (load.requests or 0) < most:
        yield _Found("few", 1.0, (load.requests, most))


def _of_left_out(kept: int, left_out: Mapping[str, str]) -> Iterator[_Found]:
    """Where most runs were left out, the rest may be as odd as they."""
    if len(left_out) > kept:
        [(why, count)] = Counter(left_out.values()).most_common(1)
        numbers = (len(left_out), kept + len(left_out), count, why)
        yield _Found("left out", 1.0, numbers)


def _once(settings: Sequence[Setting]) -> Iterator[_Found]:
    if once := sum(len(each.runs) == 1 for each in settings):
        halves = (TWO_SIDED * ONE_RUN_SD * (2 / n) ** 0.5 for n in (1, FEWEST))
        yield _Found("once", 1.0, (once, len(settings), *map(math.expm1, halves)))

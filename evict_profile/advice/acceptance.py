"""Tokens a step commits by what it drafts, from the words and files of `--accept`.

Numbers, a YAML of lengths and traces are read here; every other file, a server's URL
and a served table give runs, whose accepted lengths are weighted by their steps.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evict_profile.advice.lengths import AcceptedLengths, of_lengths, of_rate, of_some
from evict_profile.errors import ConfigError
from evict_profile.records import read_mapping, replace
from evict_profile.served.setting import spread
from evict_profile.stats import student

if TYPE_CHECKING:
    from evict_profile.served.run import Run
    from evict_profile.served.table import ServedTable

LONGEST_STATED = 64

FALL = 0.85
"""Accepted drafts over those of a shorter K, below which their texts differ: published
curves fall to 0.89 (benchmarks/served/data/inferencex-golden-al.csv)."""

APART, HEAVY = 1.2, 0.2
"""Ratio of two batches' lengths of one K above which each batch has its own, where each
has at least this share of the weight: the idle tail of a log says little."""

KNOWN = (
    "give the first draft's chance from 0 to 1 (0.75), accepted lengths of K = 1, 2, 3 "
    "(1.84,2.51,3.01) or of any K (3:2.51), K and the mean acceptance rate (4:64%), "
    "falling shares by position (0.8,0.65,0.5), a server's URL, or a file: "
    "FILE.yaml[:curve], TRACE.parquet, or any file of runs, as FILE=K if it states no K"
)

PERFECT = (
    "every draft is accepted, as where replies repeat themselves or one length was "
    "forced; check the text, and give the length of real prompts, as 3:2.64"
)


def acceptance_of(text: str) -> tuple[AcceptedLengths, ...]:
    """The acceptance that `--accept` names; of a trace, chains and then trees."""
    if text.startswith(("http://", "https://")):
        from evict_profile.served.readers.metrics import read_server

        return (_possible(text, of_runs(read_server(text), "a server's counters")),)
    for pattern, meaning in FORMS.items():
        if match := re.fullmatch(pattern, text):
            if isinstance(meaning, str):
                raise ConfigError(f"--accept {text}: {match.expand(meaning)}")
            return (_possible(text, meaning(text)),)
    if found := _file(text):
        return _of_file(text, *found)
    raise ConfigError(f"--accept {text}: no such file, nor numbers; {KNOWN}")


def _of_pairs(text: str) -> AcceptedLengths:
    """Lengths of some K; a share is the mean rate over all positions: 1 + K x rate."""
    lengths, pairs = dict[int, float](), text.split(",")
    for drafts, value in map(_split, pairs):
        number = _number(value)
        is_length = number >= 1.0 and not value.endswith("%")
        lengths[int(drafts)] = number if is_length else 1.0 + int(drafts) * number
    if len(lengths) < len(pairs):
        raise ConfigError(f"--accept {text}: names a K twice; give each K once")
    _check_given(text, lengths)
    rates = any(_number(v) < 1.0 or v.endswith("%") for _, v in map(_split, pairs))
    read = ", a rate as the mean over K positions" * rates
    return of_some(lengths, f"lengths as given{read}")


def _split(pair: str) -> tuple[str, str]:
    drafts, _, value = pair.partition(":")
    return drafts, value


def _of_numbers(text: str) -> AcceptedLengths:
    """One rate, lengths of K = 1, 2 and so on, or shares by position."""
    numbers = [_number(each) for each in text.split(",")]
    if len(numbers) == 1 and numbers[0] <= 1.0:
        return of_rate(numbers[0])
    if len(numbers) == 1:
        raise ConfigError(
            f"--accept {text}: of which K? Name the K of its server, as in --accept "
            f"3:{text}; give lengths of several K as 1.84,2.51,3.01"
        )
    if min(numbers) >= 1.0 and max(numbers) > 1.0:
        lengths = dict(enumerate(numbers, 1))
        _check_given(text, lengths)
        return of_lengths(lengths, "lengths as given")
    if (np.diff(numbers, prepend=1.0, append=0.0) <= 0.0).all() and min(numbers) < 1.0:
        shares = dict(enumerate((1.0 + np.cumsum(numbers)).tolist(), 1))
        return of_lengths(shares, "shares by position as given")
    raise ConfigError(
        f"--accept {text}: is neither lengths nor falling shares; {KNOWN}"
    )


def _number(text: str) -> float:
    return float(text[:-1]) / 100.0 if text.endswith("%") else float(text)


NUMBER = r"(?:\d+\.?\d*|\.\d+)%?"
FORMS: Mapping[str, str | Callable[[str], AcceptedLengths]] = {
    rf"\d+:{NUMBER}(?:,\d+:{NUMBER})*": _of_pairs,
    r"nan|[+-]?inf(inity)?": "is no acceptance; give a rate from 0 to 1, as 0.75",
    r"-.*": "is negative; give a rate from 0 to 1, as 0.75",
    r"(\d),(\d\d+)": r"has a comma for a point; give \1.\2",
    r"(?:[Kk] ?=? ?)?(\d+)[=:](\d[\d.]*%?)": r"has no such form; give \1:\2",
    r"(?:[Kk] ?=? ?)?(\d+)[=:]": r"names K = \1 without its length; give \1:2.51",
    r"1(\.0*)?|100(\.0*)?%": f"means that {PERFECT}",
    rf"{NUMBER}(?:,{NUMBER})*": _of_numbers,
}
"""What a text of numbers means, or what to say of one that slipped, by its pattern."""


def _file(text: str) -> tuple[Path, str, int | None] | None:
    """A file, the curve in it, and K, of FILE, FILE:curve or FILE=K.

    A whole name is looked for first, because names of logs hold colons.
    """
    name, _, drafts = text.rpartition("=")
    base, _, curve = text.rpartition(":")
    forms: list[tuple[str, str, int | None]] = [(text, "", None)]
    forms += [(name, "", int(drafts))] * drafts.isdecimal() if name else []
    forms += [(base, curve, None)] if base and curve else []
    found = ((Path(path).expanduser(), curve, k) for path, curve, k in forms)
    return next((each for each in found if each[0].exists()), None)


def _of_file(
    text: str, path: Path, curve: str, drafts: int | None
) -> tuple[AcceptedLengths, ...]:
    if path.suffix in (".yaml", ".yml"):
        return (of_yaml(path, curve),)
    if curve:
        raise ConfigError(f"--accept {text}: a YAML has curves; give {path} alone")
    if path.suffix == ".parquet" or path.is_dir():
        from evict_profile.advice.traced import of_trace

        return of_trace(path)
    from evict_profile.served.readers import read_runs

    runs = read_runs(path, drafts)
    return (_possible(text, of_runs(runs, path.name)),)


def _check_given(text: str, lengths: Mapping[int, float]) -> None:
    wrong, drafts = "", np.array([lengths[k] for k in sorted(lengths)]) - 1.0
    if not 1 <= min(lengths) <= max(lengths) <= LONGEST_STATED:
        wrong = f"K is 1 to {LONGEST_STATED}; leave others out, and plain decoding too"
    elif (drafts[1:] < FALL * drafts[:-1]).any():
        wrong = (
            "a longer draft commits as many tokens or more, and these lengths fall; "
            "give lengths of one text, in the order of K"
        )
    if wrong:
        raise ConfigError(f"--accept {text}: {wrong}")


def _possible(text: str, found: AcceptedLengths) -> AcceptedLengths:
    """The same; a real drafter misses, so a longest draft without a miss is refused."""
    if (k := found.longest_stated) and found.committed[found.levels == k][0] >= k + 1:
        raise ConfigError(f"--accept {text}: says of K = {k} that {PERFECT}")
    return found


def of_served(table: "ServedTable", context: float | None) -> AcceptedLengths:
    """Of the runs of a table at a context, at each batch those of that batch.

    Trees beside chains are left out, because advice is of chains.
    """
    ran = sorted({each.batch for each in table.settings})
    settings = (each for batch in ran for each in table.served_at(batch, context))
    every = [run for each in settings for run in each.runs]
    chains = [run for run in every if run.topk == 1]
    runs = chains if any(run.drafts for run in chains) else every
    return _possible(str(table.path), of_runs(runs, str(table.path), by_batch=True))


def of_runs(
    runs: "Sequence[Run]", name: str, by_batch: bool = False
) -> AcceptedLengths:
    """From the lengths that runs state; by batch if asked, or where batches differ."""
    known = [run for run in runs if run.drafts and run.accept_lengths]
    _check_alike(known, name)
    of = {b: [run for run in known if run.batch == b] for b in {r.batch for r in known}}
    texts = sorted({run.text for run in known} - {""})
    mean = f", the mean of the texts {', '.join(texts)}" * (len(texts) > 1)
    source = f"{len(known)} run{'s' * (len(known) > 1)} of {name}{mean}"
    whole = _mean_of(known, source)
    if not (by_batch or _lie_apart(of)):
        return whole
    batches = {batch: _mean_of(of[batch], whole.source) for batch in sorted(of)}
    return replace(whole, source=f"{whole.source}, by batch", by_batch=batches)


def _mean_of(runs: "Sequence[Run]", source: str) -> AcceptedLengths:
    drafts = sorted({k for run in runs for k in run.accept_lengths})
    means, half = zip(*(_length(runs, k) for k in drafts), strict=True)
    found = of_some(dict(zip(drafts, means, strict=True)), source)
    own_half = np.interp(found.levels[1:], drafts, half)
    return replace(found, half_width=np.hypot(found.half_width, [0.0, *own_half]))


def _length(runs: "Sequence[Run]", k: int) -> tuple[float, float]:
    """The mean length of K, and half of its relative interval.

    Runs of one text weigh by their steps, else by their requests. Of several texts the
    interval is that of one more text.
    """
    own = [run for run in runs if k in run.accept_lengths]
    if len(texts := {run.text for run in own}) > 1:
        each = [_length([run for run in own if run.text == t], k)[0] for t in texts]
        return float(np.mean(each)), spread(np.log(each))
    lengths = np.array([run.accept_lengths[k] for run in own])
    weights = np.array([run.load.steps or run.batch for run in own])
    share = weights / weights.sum()
    mean, others = float(share @ lengths), len(own) - 1
    if not others:
        return mean, 0.0
    error = np.linalg.norm(share * (lengths - mean)) * (len(own) / others) ** 0.5
    return mean, float(student(others) * error / mean)


def _lie_apart(of: "Mapping[int, Sequence[Run]]") -> bool:
    """Whether batches that weigh enough have lengths of one K that lie apart."""
    total = sum(run.load.steps or 1.0 for runs in of.values() for run in runs)
    heavy = [
        runs
        for runs in of.values()
        if sum(run.load.steps or 1.0 for run in runs) >= HEAVY * total
    ]
    for k in {k for runs in heavy for run in runs for k in run.accept_lengths}:
        having = (
            runs for runs in heavy if any(k in run.accept_lengths for run in runs)
        )
        means = [_length(runs, k)[0] for runs in having]
        if max(means) > APART * min(means):
            return True
    return False


def _check_alike(runs: "Sequence[Run]", name: str) -> None:
    """Refuse runs whose lengths are not of one server, one K a step, and chains."""
    from evict_profile.served.probe.record import near

    wrong = ""
    # What a run does not state contradicts nothing.
    stated = [
        {str(getattr(run.deployment, fact)) for run in runs} - {""}
        for fact in ("model", "engine")
    ]
    several = [" and ".join(sorted(values)) for values in stated if len(values) > 1]
    if not runs:
        wrong = (
            "states no accepted length of a server that drafts; serve one with K = 3"
        )
    elif several:
        wrong = (
            f"runs are of several servers ({'; '.join(several)}); give a file of one"
        )
    elif any(run.topk > 1 for run in runs):
        wrong = (
            "drafts are trees, and their own speed-ups are what 'evict-profile import' "
            "and 'show' state; for others give lengths of chains (topk 1)"
        )
    elif {"chat", "raw"} <= {run.text for run in runs}:
        wrong = "has chat and raw prompts; give a file of one kind of prompts"
    for run in runs:
        if run.load.drafted is not None and not near(run.load.drafted, run.drafts):
            wrong = (
                f"{run.load.drafted:.2f} tokens are drafted a step, not K = "
                f"{run.drafts}; serve one K alone"
            )
    if wrong:
        raise ConfigError(f"{name}: {wrong}, or give a length as --accept 3:2.64")


def of_yaml(path: Path, curve: str = "") -> AcceptedLengths:
    """InferenceX's lengths by model, mode and K, of one `curve`, such as
    "dsv4-pro/thinking_on"."""
    curves = dict(_curves(read_mapping(path)))
    served = curves.pop("served", {})
    if not curves:
        raise ConfigError(
            f"{path}: holds no acceptance lengths; give a mapping of draft lengths to "
            "accepted lengths, such as {1: 1.84, 2: 2.51}"
        )
    if not curve and len(curves) == 1:
        (curve,) = curves
    if curve not in curves:
        raise ConfigError(
            f"{path}: holds {', '.join(curves)}; choose one as "
            f"{path}:{next(iter(curves))}"
        )
    found = of_lengths(curves[curve], f"{path.name} {curve}".strip())
    return replace(found, served=served)


def _curves(content: Any, name: str = "") -> Iterator[tuple[str, dict[int, float]]]:
    """Each mapping of whole numbers to numbers in a document, by its path."""
    if isinstance(content, list):
        content = {
            k: v for each in content if isinstance(each, dict) for k, v in each.items()
        }
    if not isinstance(content, dict) or not content:
        return
    try:
        yield name, {int(k): float(v) for k, v in content.items()}
    except (TypeError, ValueError):
        for key, inner in content.items():
            yield from _curves(inner, f"{name}/{key}" if name else str(key))

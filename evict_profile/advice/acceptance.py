"""Tokens a step commits by what it drafts, from the forms of acceptance in use.

A chain of K drafts commits the accepted prefix and one token of the target, so a longer
chain also gives the shorter ones. Traces, metrics and fits have an interval.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evict_profile.advice.metrics import is_probe, read_lengths, read_server, read_steps
from evict_profile.advice.server_log import ServerLog, read_log
from evict_profile.errors import ConfigError
from evict_profile.records import read_mapping, replace
from evict_profile.stats import Bools, Bootstrap, Floats, Ints, student

if TYPE_CHECKING:
    from evict_profile.traces import Nodes, Trace

LONGEST, LONGEST_STATED = 16, 64
"""The longest draft that is fitted in any case, and the longest that may be stated."""

FALL = 0.85
"""Accepted drafts over those of a shorter K, below which their texts differ: published
curves fall to 0.89 (benchmarks/served/data/inferencex-golden-al.csv)."""

REJECTION_GROWTH = 1.09
"""Growth of the chance of a rejection from one draft to the next; see `of_rate`."""

TREE_WIDTHS = (2, 4, 8, 12, 16, 24, 32, 48, 64)

FORMS = (
    "give a rate from 0 to 1 (0.75), accepted lengths of K = 1, 2, 3 (1.84,2.51,3.01) "
    "or of any K (3:2.51 or 3:2.51,7:3.02), falling shares by position (0.8,0.65,0.5), "
    "a server's URL, or a file: FILE.yaml[:curve], FILE.jsonl of probe, FILE.json of "
    "vLLM's metrics, TRACE.parquet, or a log of SGLang or vLLM"
)

BLOCKS = 10
"""Parts of a log whose means give the interval: neighbouring lines are correlated."""


@dataclass(frozen=True, eq=False)
class AcceptedLengths:
    """Tokens that a step commits, for each way to draft; the first drafts nothing.

    By way: tokens a request verifies, root included; levels drafted; mean committed
    tokens, the target's included. `half_width` is half of the relative 95 % interval: 0
    if unknown, infinite for too few prompts. `served` has measured speeds over plain
    decoding by draft length; `stated` the K to which others are fitted, if any.
    """

    kind: Literal["chain", "tree"]
    source: str
    width: Ints
    levels: Ints
    committed: Floats
    half_width: Floats
    served: Mapping[int, float] = field(default_factory=dict)
    stated: tuple[int, ...] = ()

    def name(self, way: int) -> str:
        """ "K=3", "K=5 fitted" or "16 tokens, depth 5"."""
        levels = int(self.levels[way])
        if not levels:
            return "none"
        if self.kind == "tree":
            return f"{self.width[way]} tokens, depth {levels}"
        fitted = self.stated and levels not in self.stated
        return f"K={levels} fitted" if fitted else f"K={levels}"


def acceptance_of(text: str) -> tuple[AcceptedLengths, ...]:
    """The acceptance that `--accept` names; of a trace, chains and then trees."""
    if numbers := _numbers(text):
        return (_of_numbers(text, numbers),)
    if re.fullmatch(r"\d+:\d+(\.\d+)?(,\d+:\d+(\.\d+)?)*", text):
        pairs = [each.split(":") for each in text.split(",")]
        lengths = {int(drafts): float(length) for drafts, length in pairs}
        if len(lengths) < len(pairs):
            raise ConfigError(f"--accept {text}: names a K twice; give each K once")
        _check_given(text, lengths)
        return (of_some(lengths, "lengths as given"),)
    if text.startswith(("http://", "https://")):
        return (of_some(read_server(text), "lengths as the server counted them"),)
    name, _, curve = text.partition(":")
    path = Path(name).expanduser()
    if not path.exists():
        raise ConfigError(f"--accept {text}: no such file, nor numbers; {FORMS}")
    if path.suffix in (".yaml", ".yml"):
        return (of_yaml(path, curve),)
    if path.suffix in (".json", ".jsonl") and path.is_file():
        return (of_probe(path) if is_probe(path) else of_metrics(path),)
    if path.suffix == ".parquet" or path.is_dir():
        return of_trace(path)
    if path.is_file() and (log := read_log(path)):
        return (of_log(log),)
    raise ConfigError(f"--accept {text}: the file is of no kind that is read; {FORMS}")


def _numbers(text: str) -> list[float]:
    """Numbers between commas; none if one is not a number."""
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        return []


def _of_numbers(text: str, numbers: list[float]) -> AcceptedLengths:
    """One rate, lengths or shares by position."""
    least, most = min(numbers), max(numbers)
    if len(numbers) == 1 and 0.0 <= most <= 1.0:
        return of_rate(most)
    if len(numbers) == 1 and most > 1.0:
        raise ConfigError(
            f"--accept {text}: of which K? Name the K of its server, as in --accept "
            f"3:{text}; give lengths of several K as 1.84,2.51,3.01"
        )
    if least >= 1.0 and most > 1.0:
        lengths = dict(enumerate(numbers, 1))
        _check_given(text, lengths)
        return of_lengths(lengths, "lengths as given")
    if least < 1.0 and (np.diff(numbers, prepend=1.0, append=0.0) <= 0.0).all():
        lengths = (1.0 + np.cumsum(numbers)).tolist()
        return of_lengths(dict(enumerate(lengths, 1)), "shares by position as given")
    raise ConfigError(
        f"--accept {text}: is neither lengths nor falling shares; {FORMS}"
    )


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


def of_lengths(lengths: Mapping[int, float], source: str) -> AcceptedLengths:
    for drafts, length in lengths.items():
        if drafts < 1 or not 1.0 <= length <= drafts + 1:
            raise ConfigError(
                f"{source}: a step that drafts {drafts} commits 1 to {drafts + 1} "
                f"tokens, and {length:g} was given; give acceptance lengths, the "
                "target's own token included"
            )
    levels = np.array([0, *sorted(lengths)])
    committed = np.array([1.0, *(lengths[k] for k in sorted(lengths))])
    return AcceptedLengths(
        "chain", source, levels + 1, levels, committed, np.zeros(len(levels))
    )


def of_rate(rate: float) -> AcceptedLengths:
    """From the chance that the first draft is accepted.

    The k-th draft, given those before it, is accepted with max(0, 1 - (1 - rate)
    1.09^(k - 1)). 1.09 is the median of 55 groups of EAGLE-3 runs at K = 3, 5, 7
    (quartiles 1.06 to 1.13; benchmarks/served/data/specbundle.csv); the 14 curves of
    inferencex-golden-al.csv beside it have 1.07 to 1.6. A constant rate gives 3 % too
    much at K = 5 and 5 % at K = 7.
    """
    lengths = _lengths_at(np.array(rate), LONGEST)
    source = f"the first draft is accepted at {rate:g}, and rejection grows by 9 % a"
    return of_lengths(dict(enumerate(lengths.tolist(), 1)), f"{source} draft")


def _lengths_at(rate: Floats, longest: int) -> Floats:
    """Lengths at K = 1, 2 and so on by `of_rate`, float64 [..., longest]."""
    rejected = (1.0 - rate[..., None]) * REJECTION_GROWTH ** np.arange(longest)
    chances = np.cumprod(np.maximum(1.0 - rejected, 0.0), axis=-1)
    return np.asarray(1.0 + np.cumsum(chances, axis=-1), dtype=np.float64)


def of_some(lengths: Mapping[int, float], source: str) -> AcceptedLengths:
    """All K up to 16, or to a longer one that is stated, from the lengths of some.

    Each stated length has the rate by which `of_rate` gives it. Between two of them the
    rate is on a straight line; elsewhere it is that of the nearest. Half of an interval
    is 22 % of |log(K / stated K)|, which holds 96 % of 1,648 lengths of 110 published
    curves from one other length (tests/advice/test_acceptance.py).
    """
    given = of_lengths(lengths, source)
    stated = given.levels[1:]
    longest = max(LONGEST, int(stated[-1]))
    rates, drafts = np.linspace(0.0, 1.0, 2001), np.arange(1, longest + 1)
    curves = _lengths_at(rates, longest).T
    own = [np.interp(lengths[k], curves[k - 1], rates) for k in stated.tolist()]
    fitted = _lengths_at(np.interp(drafts, stated, own), longest).diagonal()
    apart = np.abs(np.log(drafts[:, None] / stated)).min(axis=1)
    every = dict(enumerate(fitted.tolist(), 1)) | dict(lengths)
    found = of_lengths(every, f"{source}, and fitted to them at other K")
    half_width = np.array([0.0, *0.22 * apart])
    return replace(found, half_width=half_width, stated=tuple(stated.tolist()))


def of_yaml(path: Path, curve: str = "") -> AcceptedLengths:
    """InferenceX's lengths by model, mode and K, of one `curve`, such as
    "dsv4-pro/thinking_on"."""
    content = read_mapping(path)
    stated = content.pop("served", {})
    served = dict(_curves(stated)).get("", {})
    if stated and not served:
        raise ConfigError(f"{path}: served must map draft lengths to speed-ups; fix it")
    curves = dict(_curves(content))
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


def of_probe(path: Path) -> AcceptedLengths:
    """From the waves of `evict-profile probe`."""
    found = dict(sorted(read_lengths(path).items()))
    lengths = {drafts: length.value for drafts, length in found.items()}
    half = [(each.high - each.low) / 2.0 / each.value for each in found.values()]
    known = of_lengths(lengths, f"waves of {path.name}")
    return replace(known, half_width=np.array([0.0, *half]))


def of_log(log: ServerLog) -> AcceptedLengths:
    """From the last lengths that a server logged."""
    logged, drafts = log.lengths, log.drafts
    if not len(logged) or not drafts:
        missing = "K of chains" if len(logged) else "accepted length"
        mean = logged[:, -1].mean() if len(logged) else 2.64
        raise ConfigError(
            f"{log.name}: states no {missing}; give the log from the server's start, "
            f"or K and length as in 3:{mean:.2f}"
        )
    parts = np.array_split(logged, min(BLOCKS, len(logged)))
    means = np.array([part.mean(axis=0) for part in parts])
    error = means.std(axis=0, ddof=1) / len(means) ** 0.5 if len(means) > 1 else 0.0
    half = float(np.max(student(max(len(means) - 1, 1)) * error / means.mean(axis=0)))
    ways = range(1 + drafts - logged.shape[1], drafts + 1)
    lengths = dict(zip(ways, logged.mean(axis=0).tolist(), strict=True))
    found = of_some(lengths, f"the last {len(logged)} lengths in {log.name}")
    own = np.array([0.0, *np.full(len(found.levels) - 1, half)])
    return replace(found, half_width=np.hypot(found.half_width, own))


def of_metrics(path: Path) -> AcceptedLengths:
    """From responses of vLLM under `--per-request-spec-decode-metrics`.

    A step with fewer than K drafts is no sample of K. `summary` is enough where all
    steps draft the same number.
    """
    requests = read_steps(path)
    if not requests:
        raise ConfigError(
            f"{path}: no metrics.speculative_decoding in it state what each step "
            "drafted; serve with a draft model and --per-request-spec-decode-metrics "
            "detailed, and save the responses"
        )
    ways = range(1, 1 + max(int(drafted.max()) for drafted, _ in requests))
    sums = np.zeros((len(requests), len(ways), 2))
    for number, (drafted, accepted) in enumerate(requests):
        for way, drafts in enumerate(ways):
            committed = 1 + np.minimum(accepted[drafted >= drafts], drafts)
            sums[number, way] = committed.sum(), len(committed)
    source = f"{len(requests)} requests of {path.name}"
    return _of_sums("chain", source, ways, ways, sums)


def of_trace(path: Path) -> tuple[AcceptedLengths, AcceptedLengths]:
    """The chain of each tree's best children, and the tree cut to widths.

    In a dense trace decoding continues where each way commits; else at the full tree's
    steps.
    """
    from evict_profile.traces import load_traces
    from evict_profile.traces.trace import check_one_temperature, check_trees

    trace = load_traces(path)
    check_trees(trace)
    check_one_temperature(trace)
    nodes = trace.nodes
    deepest, most = int(nodes.depth.max()), int(trace.size.max())
    levels = range(1, deepest + 1)
    widths = [width - 1 for width in TREE_WIDTHS if width <= most] + [most]
    place = np.where(best_children(nodes), nodes.depth - 1, deepest)
    chains = _decoded(trace, place, levels)
    trees = _decoded(trace, nodes.place, widths)
    best, cut = f"best children in {path.name}", f"trees of {path.name}"
    return (
        _of_sums("chain", best, levels, levels, chains),
        _of_sums("tree", cut, widths, [deepest] * len(widths), trees),
    )


def best_children(nodes: "Nodes") -> Bools:
    chain: Bools = nodes.rank == 0
    for depth in range(2, int(nodes.depth.max(initial=1)) + 1):
        here = np.flatnonzero(nodes.depth == depth)
        chain[here] &= chain[nodes.parent[here]]
    return chain


def _decoded(trace: "Trace", place: Ints, ways: Sequence[int]) -> Floats:
    """Tokens and steps by prompt, the best nodes verified: [prompts, ways, 2]."""
    sums = np.zeros((len(trace.prompts), len(ways), 2))
    for way, drafts in enumerate(ways):
        hit = trace.nodes.accepted & (place < drafts)
        committed = 1 + np.bincount(trace.nodes.step[hit], minlength=len(trace))
        for reply, prompt in enumerate(trace.prompt):
            step, end = trace.first[reply], trace.end[reply]
            while step < end:
                sums[prompt, way] += committed[step], 1
                step += committed[step] if trace.is_dense[reply] else 1
    return sums


def _of_sums(
    kind: Literal["chain", "tree"],
    source: str,
    drafts: Sequence[int],
    levels: Sequence[int],
    sums: Floats,
) -> AcceptedLengths:
    """From committed tokens and steps by unit and way, float64 [units, ways, 2]."""
    bootstrap = Bootstrap(len(sums))
    tokens, steps = (bootstrap.sums(sums[..., part]) for part in (0, 1))
    known = steps[:, 0] > 0.0
    ratios = tokens[known] / np.maximum(steps[known], 1e-9)
    found = [bootstrap.estimate(row) for row in ratios]
    half_width = [(e.high - e.low) / 2.0 / e.value for e in found]
    return AcceptedLengths(
        kind,
        source,
        1 + np.array([0, *np.array(drafts)[known]]),
        np.array([0, *np.array(levels)[known]]),
        np.array([1.0, *(e.value for e in found)]),
        np.array([0.0, *half_width]),
    )

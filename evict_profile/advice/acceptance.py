"""How many tokens a step commits by what it drafts, in the forms that people have it.

A chain that drafts K tokens commits those the target accepts and one of its own; what
was accepted of a longer chain also says what a shorter one would have committed, since
a chain is accepted as a prefix. Published lengths and a rate tell no more than a mean.
A trace and a server's metrics are of requests, so they give an interval as well, and a
trace of trees tells of trees: chains alone never do.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import gt
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from evict_profile.advice.chains import best_children
from evict_profile.errors import ConfigError
from evict_profile.records import parse, read_mapping
from evict_profile.stats import Bootstrap, Floats, Ints
from evict_profile.traces import Trace, load_traces
from evict_profile.traces.trace import Reply, Step, check_one_temperature, check_trees

LONGEST = 16
"""The longest chain that a rate is spelt out for."""

MAX_DRAFTS, MAX_STEPS = 1024, 10**7
"""The most drafts of a step, and steps of a request, that metrics may state."""
Drafts = Annotated[int, Meta(ge=0, le=MAX_DRAFTS)]

TREE_WIDTHS = (2, 4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, eq=False)
class AcceptedLengths:
    """Tokens that a step commits, for each way to draft; the first drafts nothing.

    Attributes:
        kind: chains, or trees that are cut to their best nodes.
        source: where the numbers come from, as pages name it.
        option: gives the same acceptance to a command.
        width: int64 [ways], tokens a request verifies, its root included; 1 first.
        levels: int64 [ways], levels drafted; 0 first.
        committed: float64 [ways], mean tokens a step, the target's own included.
        reach: float64 [ways], half of the 95 % interval over the mean; 0 where
            nothing says how sure it is, infinite of too few prompts or requests.
    """

    kind: Literal["chain", "tree"]
    source: str
    option: str
    width: Ints
    levels: Ints
    committed: Floats
    reach: Floats

    def name(self, way: int) -> str:
        """How a way to draft is called: "K=3" or "16 tokens, depth 5"."""
        if not self.levels[way]:
            return "none"
        if self.kind == "chain":
            return f"K={self.levels[way]}"
        return f"{self.width[way]} tokens, depth {self.levels[way]}"


def acceptance_of(
    lengths: str | None = None,
    golden: Path | None = None,
    curve: str | None = None,
    rate: float | None = None,
    metrics: Path | None = None,
    trace: Path | None = None,
    acceptance: str | None = None,
) -> tuple[AcceptedLengths, ...]:
    """The acceptance that was told in one form; of a trace, chains and then trees.

    Raises:
        ConfigError: none or several were given, or what was given is no acceptance.
        TraceError: a trace that cannot be read.
    """
    told: dict[Callable[..., AcceptedLengths], Any] = {
        of_text: lengths,
        of_rate: rate,
        of_positions: acceptance,
        of_metrics: metrics,
        partial(of_golden, curve=curve): golden,
    }
    given = [(read, value) for read, value in told.items() if value is not None]
    if len(given) + (trace is not None) != 1:
        raise ConfigError(
            "give acceptance in one form: --lengths, --golden, --rate, --metrics, "
            "--trace or, of an export, --acceptance"
        )
    if curve is not None and golden is None:
        raise ConfigError("--curve names one of --golden; give that, or leave it out")
    return of_trace(trace) if trace else tuple(read(value) for read, value in given)


def of_lengths(
    lengths: Mapping[int, float], source: str, option: str
) -> AcceptedLengths:
    """From mean committed tokens by draft length K.

    Raises:
        ConfigError: a length that no chain of that many drafts can have.
    """
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
        "chain", source, option, levels + 1, levels, committed, np.zeros(len(levels))
    )


def of_text(text: str) -> AcceptedLengths:
    """From "1.84,2.51,3.01": lengths of K = 1, 2, 3.

    Raises:
        ConfigError: no such list.
    """
    lengths = _numbers(text)
    if not lengths:
        raise ConfigError(
            f"--lengths {text}: give numbers for K = 1, 2, ..., as in 1.84,2.51,3.01"
        )
    told = dict(enumerate(lengths, 1))
    return of_lengths(told, "lengths as given", _option("--lengths", text))


def of_positions(text: str) -> AcceptedLengths:
    """From "0.8,0.65,0.5": in which share of steps the first, second, third draft is
    accepted, as llama-server logs them ("acc per pos").

    Raises:
        ConfigError: no such list.
    """
    shares = _numbers(text)
    falls = np.diff(shares, prepend=1.0, append=0.0) <= 0.0
    if not shares or not falls.all():
        raise ConfigError(
            f"--acceptance {text}: give the share of steps in which each draft is "
            "accepted, never rising, from 1 to 0, as in 0.8,0.65,0.5"
        )
    lengths = dict(enumerate((1.0 + np.cumsum(shares)).tolist(), 1))
    option = _option("--acceptance", text)
    return of_lengths(lengths, "shares by position as given", option)


def _option(*words: object) -> str:
    """Words of a command line, as a shell reads them back."""
    return shlex.join(map(str, words))


def _numbers(text: str) -> list[float]:
    """Numbers between commas; none where one of them is no number."""
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        return []


def of_rate(rate: float) -> AcceptedLengths:
    """From one chance that a draft is accepted if those before it are.

    Raises:
        ConfigError: no chance.
    """
    if not 0.0 <= rate <= 1.0:
        raise ConfigError(f"--rate {rate:g}: give a chance from 0 to 1")
    lengths = np.cumsum(rate ** np.arange(LONGEST + 1))[1:].tolist()
    told = f"acceptance {rate:g} of every draft, taken to be independent"
    return of_lengths(dict(enumerate(lengths, 1)), told, _option("--rate", rate))


def of_golden(path: Path, curve: str | None = None) -> AcceptedLengths:
    """From a YAML of lengths by model, mode and K, as InferenceX commits them.

    Args:
        curve: such as "dsv4-pro/thinking_on"; needed where the file holds several.

    Raises:
        ConfigError: no such file or curve.
    """
    curves = dict(_curves(read_mapping(path)))
    if not curves:
        raise ConfigError(
            f"{path}: holds no acceptance lengths; give a mapping of draft lengths to "
            "accepted lengths, such as {1: 1.84, 2: 2.51}"
        )
    if curve is None and len(curves) == 1:
        (curve,) = curves
    if curve not in curves:
        raise ConfigError(f"{path}: holds {', '.join(curves)}; choose one with --curve")
    option = _option("--golden", path, *(["--curve", curve] if curve else []))
    return of_lengths(curves[curve], f"{path.name} {curve}".strip(), option)


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


def of_metrics(path: Path) -> AcceptedLengths:
    """From responses of vLLM under `--per-request-spec-decode-metrics`.

    A step that drafted fewer than K tokens says nothing of K. What `summary` gives
    is enough where every step drafted alike.

    Raises:
        ConfigError: no such file, or no response states the drafts of its steps.
    """
    stated = (
        parse(RequestMetrics, each, str(path), extra_keys=True)
        for each in _metrics(_documents(path))
    )
    requests = [steps for each in stated if (steps := each.steps)]
    if not requests:
        raise ConfigError(
            f"{path}: no metrics.speculative_decoding in it state what each step "
            "drafted; serve with a draft model and --per-request-spec-decode-metrics "
            "detailed, and save the responses"
        )
    ways = range(1, 1 + max(int(drafted.max()) for drafted, _ in requests))
    sums = np.array([[_prefix_sums(*each, k) for k in ways] for each in requests])
    source = f"{len(requests)} requests of {path.name}"
    return _of_sums("chain", source, _option("--metrics", path), ways, ways, sums)


def _prefix_sums(drafted: Ints, accepted: Ints, drafts: int) -> tuple[float, float]:
    """Committed tokens and steps of one request, had it drafted so many."""
    tells = drafted >= drafts
    return float((1 + np.minimum(accepted[tells], drafts)).sum()), float(tells.sum())


def _documents(path: Path) -> Any:
    """A JSON document, or a list of one a line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{path}: cannot be read: {reason}; give the responses as saved"
        ) from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        lines = [line for line in text.splitlines() if line.strip()]
    try:
        return [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: is neither JSON nor a JSON a line; give the responses as saved"
        ) from error


def _metrics(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, dict) and "acceptance_histogram" in content:
        yield content
    elif isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            yield from _metrics(each)


class RequestMetrics(Struct, frozen=True):
    """What vLLM says of one request's drafts, by its own names."""

    acceptance_histogram: list[Annotated[int, Meta(ge=0, le=MAX_STEPS)]]
    num_draft_tokens: int | None = None
    per_step_accepted: list[Drafts] | None = None
    per_step_drafted: list[Drafts] | None = None

    def __post_init__(self) -> None:
        accepted, drafted = self.per_step_accepted or [], self.per_step_drafted or []
        if len(accepted) != len(drafted) or any(map(gt, accepted, drafted)):
            raise ValueError(
                "per_step_accepted and per_step_drafted need one count a step, and no "
                "step accepts more than it drafted; save the responses again"
            )

    @property
    def steps(self) -> tuple[Ints, Ints] | None:
        """Drafted and accepted tokens of each step; None where they are not stated."""
        drafted, accepted = self.per_step_drafted, self.per_step_accepted
        if drafted and accepted:
            return (np.array(drafted), np.array(accepted)) if any(drafted) else None
        counts = self.acceptance_histogram
        drafts, steps = len(counts) - 1, sum(counts)
        if not steps or drafts < 1 or self.num_draft_tokens != drafts * steps:
            return None
        return np.full(steps, drafts), np.repeat(np.arange(drafts + 1), counts)


def of_trace(path: Path) -> tuple[AcceptedLengths, AcceptedLengths]:
    """From a trace: the chain of each tree's best children, and the tree cut to widths.

    Where the trace has a tree at every position, decoding goes on where each way to
    draft would have; else its steps are those of the full tree.

    Raises:
        TraceError: it cannot be read, holds no drafts, or several temperatures.
    """
    trace = load_traces(path)
    check_trees(trace)
    check_one_temperature(trace)
    deepest = max(int(step.depth.max(initial=0)) for step in trace.steps)
    most = max(len(step.parent) for step in trace.steps)
    option, levels = _option("--trace", path), range(1, deepest + 1)
    nodes = [width - 1 for width in TREE_WIDTHS if width <= most] + [most]
    chains = _decoded(trace, best_children, levels)
    trees = _decoded(trace, lambda step: step.best(len(step.parent) + 1), nodes)
    depths = [deepest] * len(nodes)
    best = f"best children in {path.name}"
    return (
        _of_sums("chain", best, option, levels, levels, chains),
        _of_sums("tree", f"trees of {path.name}", option, nodes, depths, trees),
    )


def _decoded(
    trace: Trace, ranked: Callable[[Step], Ints], ways: Sequence[int]
) -> Floats:
    """Tokens and steps of each prompt's replies where so many of a step's ranked nodes
    are verified, float64 [prompts, ways, 2]."""
    index: dict[tuple[str, int], int] = {}
    sums = np.zeros((len(trace.replies), len(ways), 2))
    for reply in trace.replies:
        prompt = index.setdefault((reply.workload, reply.prompt), len(index))
        own = [np.cumsum([0, *s.accepted[ranked(s)]]) for s in reply.steps]
        for way, drafts in enumerate(ways):
            committed = [1 + int(each[min(drafts, len(each) - 1)]) for each in own]
            sums[prompt, way] += _run(reply, committed)
    return sums[: len(index)]


def _run(reply: Reply, committed: Sequence[int]) -> tuple[int, int]:
    """Tokens and steps of a reply whose steps commit so many."""
    if not reply.dense:
        return sum(committed), len(committed)
    place = steps = 0
    while place < len(committed):
        place, steps = place + committed[place], steps + 1
    return place, steps


def _of_sums(
    kind: Literal["chain", "tree"],
    source: str,
    option: str,
    drafts: Sequence[int],
    levels: Sequence[int],
    sums: Floats,
) -> AcceptedLengths:
    """From committed tokens and steps by unit and way, float64 [units, ways, 2]."""
    bootstrap = Bootstrap(len(sums))
    tokens, steps = (bootstrap.sums(sums[..., part]) for part in (0, 1))
    told = steps[:, 0] > 0.0
    ratios = tokens[told] / np.maximum(steps[told], 1e-9)
    found = [bootstrap.estimate(row) for row in ratios]
    reach = [(e.high - e.low) / 2.0 / e.value for e in found]
    return AcceptedLengths(
        kind,
        source,
        option,
        1 + np.array([0, *np.array(drafts)[told]]),
        np.array([0, *np.array(levels)[told]]),
        np.array([1.0, *(each.value for each in found)]),
        np.array([0.0, *reach]),
    )

"""Populations of prompts that are known to the last one.

A trial draws its prompts from a population with replacement, as independent prompts
are drawn from the text of a server. So the truth of a mean is the population's own, not
a longer simulation of another one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from evict_profile.stats import Ints
from evict_profile.traces import About, Trace
from evict_profile.traces.synthetic import Mix, concentrations, dense_trace, grow
from evict_profile.traces.trace import Routes, ranges

LAYERS, EXPERTS, TOP_K = 2, 32, 2
ABOUT = About(
    "synthetic", LAYERS, EXPERTS, TOP_K, depth=3, topk=8, nodes=12, engine="synthetic"
)
CONTEXT, TOKENS = 128, 16
SHORTEST, LONGEST = 4, 80


@dataclass(frozen=True)
class Text:
    """How the prompts of a text differ: their share of easy positions, the length of
    their replies, and how far their drafter is to be trusted."""

    name: str
    draw: Callable[[np.random.Generator], tuple[float, float, float]]


def _alike(rng: np.random.Generator) -> tuple[float, float, float]:
    return 0.5, TOKENS, 1.0


def _differ(rng: np.random.Generator) -> tuple[float, float, float]:
    return rng.random(), TOKENS, 1.0


def _heavy(rng: np.random.Generator) -> tuple[float, float, float]:
    return rng.beta(0.3, 0.6), TOKENS * rng.lognormal(), 1.0


def _overconfident(rng: np.random.Generator) -> tuple[float, float, float]:
    return 0.5, TOKENS, rng.uniform(0.3, 1.0)


def _rare(rng: np.random.Generator) -> tuple[float, float, float]:
    return (1.0, 48.0, 1.0) if rng.random() < 0.1 else (0.0, 12.0, 1.0)


def _timid(rng: np.random.Generator) -> tuple[float, float, float]:
    return 0.5, TOKENS, rng.uniform(1.0, 1.6)


def _two_kinds(rng: np.random.Generator) -> tuple[float, float, float]:
    return (0.9, 32.0, 0.6) if rng.random() < 0.5 else (0.1, 12.0, 1.0)


TEXTS = (
    Text("alike", _alike),
    Text("prompts differ", _differ),
    Text("heavy tails", _heavy),
    Text("drafter claims too much", _overconfident),
    Text("one in ten is long and easy", _rare),
    Text("drafter claims too little", _timid),
    Text("two kinds, one overconfident", _two_kinds),
)


def population(text: Text, prompts: int, seed: int) -> Trace:
    """A dense trace of a text with routes, one reply a prompt."""
    trees, routes, lengths = [], [], []
    for rng in np.random.default_rng(seed).spawn(prompts):
        easy, length, trust = text.draw(rng)
        tokens = int(np.clip(length, SHORTEST, LONGEST))
        difficulty = concentrations(rng, Mix(text.name, (easy,)), tokens)
        trees.append(grow(rng, difficulty, ABOUT.depth, ABOUT.nodes, trust))
        routes.append(_routes(tokens + len(trees[-1]), rng))
        lengths.append(tokens)
    trace = dense_trace(ABOUT, text.name, trees, lengths, CONTEXT)
    return replace(trace, routes=np.concatenate(routes))


def drawn(trace: Trace, chosen: Ints) -> Trace:
    """A trace of these prompts; one that is drawn twice counts as two."""
    size = (trace.end - trace.first)[chosen]
    part = trace.take(ranges(trace.first[chosen], size))
    replies = (trace.replies[place] for place in chosen)
    numbered = tuple(replace(each, prompt=p) for p, each in enumerate(replies))
    return replace(part, replies=numbered, reply=np.repeat(np.arange(len(size)), size))


def shortened(trace: Trace, steps: int) -> Trace:
    """The first steps of every reply."""
    return trace.take(np.flatnonzero(trace.position < steps))


def unrouted(trace: Trace) -> Trace:
    """The trace evaluated at a table's activation curve."""
    about = replace(trace.about, layers=0, experts=0, top_k=0)
    return replace(trace, about=about, routes=None)


def _routes(tokens: int, rng: np.random.Generator) -> Routes:
    """Experts of so many tokens, which prefer those of their prompt's subject."""
    subject = np.log(rng.dirichlet(np.full(EXPERTS, 0.3), LAYERS) + 1e-6)
    score = subject + rng.gumbel(size=(tokens, LAYERS, EXPERTS))
    best = np.argpartition(-score, TOP_K, axis=2)[:, :, :TOP_K]
    return best.astype(np.int16)

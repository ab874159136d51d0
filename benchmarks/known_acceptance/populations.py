"""Prompts whose acceptance is known: every mean over the population is the truth."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from evict_profile.replay.synthetic import Mix, concentrations, dense_trace, grow
from evict_profile.stats import Ints
from evict_profile.traces import Trace, TraceInfo
from evict_profile.traces.trace import Routes, ranges

LAYERS, EXPERTS, TOP_K = 2, 32, 2
ABOUT = TraceInfo(
    "synthetic", LAYERS, EXPERTS, TOP_K, depth=3, topk=8, nodes=12, engine="synthetic"
)
CONTEXT, TOKENS = 128, 16
SHORTEST, LONGEST = 4, 80

TEXTS: dict[str, Callable[[np.random.Generator], tuple[float, float, float]]] = {
    "alike": lambda rng: (0.5, TOKENS, 1.0),
    "prompts differ": lambda rng: (rng.random(), TOKENS, 1.0),
    "heavy tails": lambda rng: (rng.beta(0.3, 0.6), TOKENS * rng.lognormal(), 1.0),
    "drafter claims too much": lambda rng: (0.5, TOKENS, rng.uniform(0.3, 1.0)),
    "one in ten is long and easy": lambda rng: (
        (1.0, 48.0, 1.0) if rng.random() < 0.1 else (0.0, 12.0, 1.0)
    ),
    "drafter claims too little": lambda rng: (0.5, TOKENS, rng.uniform(1.0, 1.6)),
    "two kinds, one overconfident": lambda rng: (
        (0.9, 32.0, 0.6) if rng.random() < 0.5 else (0.1, 12.0, 1.0)
    ),
}
"""Of each prompt: its share of easy positions, the length of its reply, and how far its
drafter is to be trusted."""


def population(text: str, prompts: int, seed: int, routed: bool = True) -> Trace:
    """A dense trace of a text, one reply a prompt.

    Without routes it is evaluated at a table's activation curve.
    """
    trees, routes, lengths = [], [], []
    for rng in np.random.default_rng(seed).spawn(prompts):
        easy, length, trust = TEXTS[text](rng)
        tokens = int(np.clip(length, SHORTEST, LONGEST))
        difficulty = concentrations(rng, Mix(text, (easy,)), tokens)
        trees.append(grow(rng, difficulty, ABOUT.depth, ABOUT.nodes, trust))
        routes.append(_routes(tokens + len(trees[-1]), rng))
        lengths.append(tokens)
    if not routed:
        about = replace(ABOUT, layers=0, experts=0, top_k=0)
        return dense_trace(about, text, trees, lengths, CONTEXT)
    trace = dense_trace(ABOUT, text, trees, lengths, CONTEXT)
    return replace(trace, routes=np.concatenate(routes))


def _routes(tokens: int, rng: np.random.Generator) -> Routes:
    """Experts of so many tokens, which prefer those of their prompt's subject."""
    subject = np.log(rng.dirichlet(np.full(EXPERTS, 0.3), LAYERS) + 1e-6)
    score = subject + rng.gumbel(size=(tokens, LAYERS, EXPERTS))
    best = np.argpartition(-score, TOP_K, axis=2)[:, :, :TOP_K]
    return best.astype(np.int16)


def drawn(trace: Trace, chosen: Ints) -> Trace:
    """A trace of these prompts; one that is drawn twice counts as two."""
    size = (trace.end - trace.first)[chosen]
    part = trace.take(ranges(trace.first[chosen], size))
    replies = (trace.replies[place] for place in chosen)
    numbered = tuple(replace(each, prompt=p) for p, each in enumerate(replies))
    return replace(part, replies=numbered, reply=np.repeat(np.arange(len(size)), size))

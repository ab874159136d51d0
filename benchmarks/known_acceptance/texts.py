"""Populations of prompts that are known to the last one.

A trial draws its prompts from a population with replacement, as independent prompts
are drawn from the text of a server. So the truth of a mean is the population's own, not
a longer simulation of another one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evict_profile.stats import Ints
from evict_profile.traces.synthetic import Mix, synthetic_reply
from evict_profile.traces.trace import About, Reply, Step, Trace, make_step

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
    rngs = np.random.default_rng(seed).spawn(prompts)
    return Trace(ABOUT, tuple(_reply(text, p, rng) for p, rng in enumerate(rngs)))


def drawn(trace: Trace, chosen: Ints) -> Trace:
    """A trace of these prompts; one that is drawn twice counts as two."""
    replies = enumerate(trace.replies[i] for i in chosen.tolist())
    return replace(trace, replies=tuple(replace(r, prompt=p) for p, r in replies))


def shortened(trace: Trace, steps: int) -> Trace:
    """The first steps of every reply."""
    replies = (replace(reply, steps=reply.steps[:steps]) for reply in trace.replies)
    return replace(trace, replies=tuple(replies))


def unrouted(trace: Trace) -> Trace:
    """The trace priced at a table's activation curve."""
    replies = (
        replace(reply, steps=tuple(replace(step, routes=None) for step in reply.steps))
        for reply in trace.replies
    )
    about = replace(trace.about, layers=0, experts=0, top_k=0)
    return replace(trace, about=about, replies=tuple(replies))


def _reply(text: Text, prompt: int, rng: np.random.Generator) -> Reply:
    easy, length, trust = text.draw(rng)
    tokens = int(np.clip(length, SHORTEST, LONGEST))
    mix = Mix(text.name, (easy,), trust=trust)
    reply = synthetic_reply(mix, prompt, tokens, CONTEXT, rng)
    return replace(reply, steps=_routed(reply.steps, rng))


def _routed(steps: Sequence[Step], rng: np.random.Generator) -> tuple[Step, ...]:
    """Steps whose tokens prefer the experts of their prompt's subject."""
    subject = np.log(rng.dirichlet(np.full(EXPERTS, 0.3), LAYERS) + 1e-6)
    routed = []
    for step in map(_shallow, steps):
        score = subject + rng.gumbel(size=(len(step.parent) + 1, LAYERS, EXPERTS))
        best = np.argpartition(-score, TOP_K, axis=2)[:, :, :TOP_K]
        routed.append(replace(step, routes=best.astype(np.int16)))
    return tuple(routed)


def _shallow(step: Step) -> Step:
    """The step without the levels that are not drafted; the others keep their order."""
    kept = step.depth <= ABOUT.depth
    # The root's index, -1, reads the last entry.
    index = np.append(np.cumsum(kept) - 1, -1)
    return make_step(
        step.position,
        index[step.parent[kept]],
        step.path_prob[kept],
        step.accepted[kept],
        step.context,
    )

"""Synthetic traces with known acceptance probabilities.

Trees grow as in EAGLE-2: each level expands its best nodes by path probability.
Children of a node share a Dirichlet draw with one more category, "none". At most one is
accepted, with its probability; so a path probability is that of acceptance. With
`trust`, each level succeeds `trust` times as often as the drafter states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from evict_profile.errors import ConfigError
from evict_profile.stats import Bools, Floats
from evict_profile.traces.trace import Nodes, Reply, Trace, TraceInfo

BRANCH = 8
DEPTH = 6
NODES = 60
EASY = (0.05, 0.06)
"""Dirichlet concentrations of a child and of "none"; the first child: 0.73 (code)."""
HARD = (0.3, 1.2)
"""The first child is accepted with mean probability 0.35 (chat at temperature 1)."""


@dataclass(frozen=True)
class Mix:
    """Alternating kinds of text; each position is easy or hard at random.

    `stretch` is tokens of each kind before the next; 0 divides a reply evenly. `trust`
    is the acceptance rate over the drafter's probability.
    """

    name: str
    easy_share: tuple[float, ...]
    stretch: int = 0
    trust: float = 1.0


MIXES = {
    mix.name: mix
    for mix in (
        Mix("easy", (1.0,)),
        Mix("hard", (0.0,)),
        Mix("bimodal", (0.5,)),
        Mix("bursts", (1.0, 0.0), stretch=32),
        Mix("switch", (1.0, 0.0)),
        Mix("overconfident", (0.5,), trust=0.7),
        Mix("underconfident", (0.5,), trust=1.25),
    )
}


def synthetic_trace(
    name: str, prompts: int = 12, tokens: int = 64, context: int = 0, seed: int = 0
) -> Trace:
    if name not in MIXES:
        raise ConfigError(
            f"no synthetic mix is called '{name}'; there are {', '.join(MIXES)}"
        )
    mix = MIXES[name]
    trees = [
        grow(rng, concentrations(rng, mix, tokens), DEPTH, NODES, mix.trust)
        for rng in np.random.default_rng(seed).spawn(prompts)
    ]
    about = TraceInfo(
        "synthetic", depth=DEPTH, topk=BRANCH, nodes=NODES, engine="synthetic"
    )
    return dense_trace(about, mix.name, trees, [tokens] * prompts, context)


def dense_trace(
    about: TraceInfo,
    workload: str,
    trees: Sequence[Nodes],
    tokens: Sequence[int],
    context: int,
) -> Trace:
    position = np.concatenate([np.arange(count) for count in tokens])
    size = np.array([len(tree) for tree in trees])
    # Each reply's trees count their steps and nodes from 0.
    steps, first = np.cumsum(tokens) - tokens, np.cumsum(size) - size
    step, parent, path_prob, accepted = (
        np.concatenate([getattr(tree, field.name) for tree in trees])
        for field in fields(Nodes)
    )
    step = step + np.repeat(steps, size)
    parent = np.where(parent >= 0, parent + np.repeat(first, size), -1)
    return Trace(
        about,
        tuple(Reply(workload, prompt) for prompt in range(len(trees))),
        np.repeat(np.arange(len(trees)), tokens),
        position,
        context + position,
        Nodes(step, parent, path_prob, accepted),
    )


def concentrations(rng: np.random.Generator, mix: Mix, tokens: int) -> Floats:
    kinds = len(mix.easy_share)
    stretch = mix.stretch or -(-tokens // kinds)
    kind = np.arange(tokens) // stretch % kinds
    easy = rng.random(tokens) < np.array(mix.easy_share)[kind]
    child, none = np.where(easy[:, None], EASY, HARD).T
    return np.stack([*[child] * BRANCH, none], axis=1)


def grow(
    rng: np.random.Generator,
    concentration: Floats,
    depth: int,
    nodes: int,
    trust: float = 1.0,
) -> Nodes:
    """A tree at each position, with all nodes that any depth and width would verify.

    `concentration` is float64 [positions, children + 1], the last of "none".
    """
    tokens, branch = len(concentration), concentration.shape[1] - 1
    beam = np.full((tokens, 1), -1)
    probs, reached = np.ones((tokens, 1)), np.ones((tokens, 1), dtype=np.bool_)
    parent = np.empty((tokens, 0), np.int64)
    path_prob, accepted = np.empty((tokens, 0)), np.empty((tokens, 0), np.bool_)
    kept = np.zeros((tokens, branch + (depth - 1) * branch**2), np.bool_)
    for _ in range(depth):
        # A drafter that is right more often than it says cannot be more than always.
        child = _child_probs(rng, concentration, beam.shape[1]) / max(trust, 1.0)
        hit = _pick(rng.random((tokens, beam.shape[1], 1)), trust * child)
        drafted = parent.shape[1]
        path = (probs[:, :, None] * child).reshape(tokens, -1)
        hits = (reached[:, :, None] & hit).reshape(tokens, -1)
        parent = np.hstack([parent, np.repeat(beam, branch, axis=1)])
        path_prob, accepted = np.hstack([path_prob, path]), np.hstack([accepted, hits])
        best = np.argsort(-path_prob, axis=1, kind="stable")[:, :nodes]
        np.put_along_axis(kept, best, True, axis=1)
        best = np.argsort(-path, axis=1, kind="stable")[:, :branch]
        probs = np.take_along_axis(path, best, axis=1)
        reached, beam = np.take_along_axis(hits, best, axis=1), drafted + best
    step, column = np.nonzero(kept)
    number = np.cumsum(kept).reshape(kept.shape) - 1
    above = parent[step, column]
    above = np.where(above >= 0, number[step, above], -1)
    return Nodes(step, above, path_prob[kept], accepted[kept])


def _child_probs(
    rng: np.random.Generator, concentration: Floats, parents: int
) -> Floats:
    shape = (len(concentration), parents, concentration.shape[1])
    # Concentrations near zero underflow to 0; a floor keeps 0 / 0 out.
    draws = rng.standard_gamma(concentration[:, None, :], shape) + 1e-30
    children: Floats = draws[..., :-1] / draws.sum(axis=-1, keepdims=True)
    return children


def _pick(uniform: Floats, child_prob: Floats) -> Bools:
    upper = np.cumsum(child_prob, axis=-1)
    return (uniform < upper) & (uniform >= upper - child_prob)

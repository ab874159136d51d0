"""Synthetic traces, whose acceptance probabilities are known by construction.

Trees are grown as EAGLE-2 and -3 grow them: each level expands its best nodes by path
probability. A node's children share a Dirichlet draw with one more category, "none of
these", so that siblings are exclusive and sum to less than one. Acceptance descends
from the root: one child is accepted with its probability, or none. So a node's path
probability is exactly the probability that it is accepted, unless `trust` is not one:
then each level succeeds `trust` times as often as the drafter claims.

A mix tells how hard the text is from position to position, and from stretch to stretch.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.errors import ConfigError
from evict_profile.stats import Bools, Floats, Ints
from evict_profile.traces.trace import About, Reply, Step, Trace, make_step

BRANCH = 8
"""Nodes expanded a level, and children of each."""
DEPTH = 6
NODES = 60
EASY = (0.05, 0.06)
"""Dirichlet concentrations of each child and of "none": the first child is right 0.73
of the time on average, as in code, or text that the model repeats."""
HARD = (0.3, 1.2)
"""The first child is right 0.35 of the time: open-ended chat at temperature one."""


@dataclass(frozen=True)
class Mix:
    """Kinds of text in turn; each position of a kind is easy or hard by chance.

    Attributes:
        easy_share: of the positions of each kind.
        stretch: tokens of each kind before the next; 0 shares a reply out evenly.
        trust: how often a draft token is right, over its claim.
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


def mix_of(name: str) -> Mix:
    """A mix by name."""
    if name not in MIXES:
        raise ConfigError(
            f"no synthetic mix is called '{name}'; there are {', '.join(MIXES)}"
        )
    return MIXES[name]


def synthetic_trace(
    mix: Mix, prompts: int = 12, tokens: int = 64, context: int = 0, seed: int = 0
) -> Trace:
    """A dense trace without routes and clocks: one tree at every position.

    Args:
        mix: how hard the text is.
        prompts: replies, one each.
        tokens: of each reply.
        context: tokens in the KV cache before the first step.
        seed: of all draws.
    """
    rngs = np.random.default_rng(seed).spawn(prompts)
    replies = tuple(
        synthetic_reply(mix, prompt, tokens, context, rng)
        for prompt, rng in enumerate(rngs)
    )
    about = About(
        "synthetic", depth=DEPTH, topk=BRANCH, nodes=NODES, engine="synthetic"
    )
    return Trace(about, replies)


def synthetic_reply(
    mix: Mix, prompt: int, tokens: int, context: int, rng: np.random.Generator
) -> Reply:
    """The reply to one prompt; see `synthetic_trace`."""
    levels = draw_levels(rng, concentrations(rng, mix, tokens), mix.trust)
    steps = tuple(_step(levels, position, context) for position in range(tokens))
    return Reply(mix.name, prompt, 0, 0.0, steps)


@dataclass(frozen=True)
class DraftedLevel:
    """Nodes drafted at one depth; arrays [positions, nodes].

    `parent` counts the nodes of all levels, the first level's first; -1 is the root.
    """

    parent: Ints
    path_prob: Floats
    accepted: Bools


def concentrations(rng: np.random.Generator, mix: Mix, tokens: int) -> Floats:
    """Dirichlet concentrations at each position, float64 [tokens, BRANCH + 1]."""
    kinds = len(mix.easy_share)
    stretch = mix.stretch or -(-tokens // kinds)
    kind = np.arange(tokens) // stretch % kinds
    easy = rng.random(tokens) < np.array(mix.easy_share)[kind]
    child, none = np.where(easy[:, None], EASY, HARD).T
    return np.stack([*[child] * BRANCH, none], axis=1)


def draw_levels(
    rng: np.random.Generator, concentration: Floats, trust: float = 1.0
) -> list[DraftedLevel]:
    """All nodes drafted at each position, level by level."""
    tokens = len(concentration)
    beam, drafted = np.full((tokens, 1), -1), 0
    path_prob, reached = np.ones((tokens, 1)), np.ones((tokens, 1), dtype=np.bool_)
    levels: list[DraftedLevel] = []
    for _ in range(DEPTH):
        # A drafter that is right more often than it says cannot be more than always.
        child = _child_probs(rng, concentration, beam.shape[1]) / max(trust, 1.0)
        hit = _pick(rng.random((tokens, beam.shape[1], 1)), trust * child)
        level = DraftedLevel(
            np.repeat(beam, BRANCH, axis=1),
            (path_prob[:, :, None] * child).reshape(tokens, -1),
            (reached[:, :, None] & hit).reshape(tokens, -1),
        )
        levels.append(level)
        best = np.argsort(-level.path_prob, axis=1, kind="stable")[:, :BRANCH]
        path_prob = np.take_along_axis(level.path_prob, best, axis=1)
        reached = np.take_along_axis(level.accepted, best, axis=1)
        beam, drafted = drafted + best, drafted + level.parent.shape[1]
    return levels


def _child_probs(
    rng: np.random.Generator, concentration: Floats, parents: int
) -> Floats:
    """Conditional probabilities, float64 [positions, parents, BRANCH]."""
    shape = (len(concentration), parents, BRANCH + 1)
    # Concentrations near zero underflow to 0; a floor keeps 0 / 0 out.
    draws = rng.standard_gamma(concentration[:, None, :], shape) + 1e-30
    children: Floats = draws[..., :BRANCH] / draws.sum(axis=-1, keepdims=True)
    return children


def _pick(uniform: Floats, child_prob: Floats) -> Bools:
    """The child in whose slice of [0, 1) the draw falls, or none."""
    upper = np.cumsum(child_prob, axis=-1)
    picked: Bools = (uniform < upper) & (uniform >= upper - child_prob)
    return picked


def _step(levels: list[DraftedLevel], position: int, context: int) -> Step:
    """The nodes that any depth and width up to NODES would verify, parents first."""
    parent, path_prob, accepted = (
        np.concatenate([getattr(level, name)[position] for level in levels])
        for name in ("parent", "path_prob", "accepted")
    )
    kept = np.zeros(len(parent), dtype=np.bool_)
    for end in np.cumsum([level.parent.shape[1] for level in levels]):
        kept[np.argsort(-path_prob[:end], kind="stable")[:NODES]] = True
    # The root's index, -1, reads the last entry.
    index = np.append(np.cumsum(kept) - 1, -1)
    return make_step(
        position,
        index[parent[kept]],
        path_prob[kept],
        accepted[kept],
        context=context + position,
    )

"""Made-up traces whose truth is known: dense replies, trees drafted as EAGLE-2 drafts.

A node's children share a Dirichlet draw; child r is the right one with `trust` times
the probability that the drafter gave it, or none is. So a node at depth d is accepted
with `trust ** d` times its path probability.

A token wakes the experts of largest score: a popularity that all tokens of a reply
share, plus the token's own taste. So unions grow less than uniform routing's.
"""

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evict_profile.records import replace
from evict_profile.table import DraftClock
from evict_profile.traces import About
from evict_profile.traces.load import trace_of
from evict_profile.traces.record import ReplyKey, trace_rows
from evict_profile.traces.schema import TRACE, route_type

Message = dict[str, Any]

ABOUT = About(
    model="synthetic",
    layers=3,
    experts=16,
    top_k=2,
    depth=4,
    topk=4,
    nodes=24,
    engine="synthetic",
    engine_version="1",
    device="paper",
    threads=1,
    weights_sha256="0" * 64,
)
PRICED = replace(ABOUT, layers=4, experts=32, top_k=4)
"""The shape of the model that the table of the known run prices."""
VOCABULARY = 1000
DRAFT_US, PLAIN_US, EXPERT_US, TOKEN_US, FIXED_US = 60.0, 900.0, 25.0, 12.0, 40.0
"""A step's clocks are these: a draft level, a forward, each further expert (mean over
layers), each token, and the rest of the step."""


@dataclass(frozen=True)
class Plan:
    """What to make up; `trust` below one makes an overconfident drafter."""

    prompts: int = 4
    tokens: int = 24
    seeds: int = 1
    temperatures: tuple[float, ...] = (0.0,)
    workloads: tuple[str, ...] = ("code", "prose")
    trust: float = 0.8
    seed: int = 0
    about: About = field(default_factory=lambda: ABOUT)

    def replies(self):
        """Every reply; at temperature 0 all seeds are one."""
        for workload in self.workloads:
            for temperature in self.temperatures:
                for prompt in range(self.prompts):
                    for seed in range(self.seeds if temperature else 1):
                        yield ReplyKey(workload, prompt, seed, temperature)


def make_trace(plan=None):
    return trace_of(make_table(plan or Plan()), "synthetic")


def without(trace, **nothing):
    """The same steps without their routes, or their times."""
    replies = (
        replace(reply, steps=tuple(replace(step, **nothing) for step in reply.steps))
        for reply in trace.replies
    )
    return replace(trace, replies=tuple(replies))


def write_trace(path, plan=None):
    pq.write_table(make_table(plan or Plan()), path)
    return path


def make_table(plan):
    parts = [trace_rows(key, reply_steps(plan, key)) for key in plan.replies()]
    clocks = tuple(make_clock(plan.about, batch) for batch in (1, 4))
    return TRACE.mark(pa.concat_tables(parts), plan.about, clocks)


def make_clock(about, batch):
    level_us = DRAFT_US * (1.0 + 0.1 * (batch - 1))
    drafting = tuple(level_us * depth for depth in range(about.depth + 1))
    return DraftClock(batch, drafting, FIXED_US * batch, 0.25 * FIXED_US * batch)


def reply_steps(plan, key):
    """Steps of one reply, as a runner answers them; the same for the same key."""
    name = f"{plan.seed} {key.workload} {key.prompt} {key.seed} {key.temperature}"
    rng = np.random.default_rng(list(name.encode()))
    # Easy replies have small concentrations, so that most mass is on one child.
    child = rng.choice([0.05, 0.3]) if key.workload == "prose" else 0.05
    router = Router(plan.about, rng)
    return [_step(plan, rng, router, at, child) for at in range(plan.tokens)]


class Router:
    """Experts of tokens; the popular ones are the reply's."""

    def __init__(self, about, rng):
        self.about = about
        shape = (about.layers, about.experts)
        self.popularity = 1.5 * rng.gumbel(size=shape)
        self.taste = rng.gumbel(size=(VOCABULARY, *shape))

    def routes(self, tokens):
        """Experts [tokens, layers, top_k]."""
        score = self.popularity + self.taste[np.asarray(tokens)]
        best = np.argpartition(-score, self.about.top_k - 1, axis=-1)
        chosen: np.ndarray = best[..., : self.about.top_k]
        return chosen.astype(route_type(self.about.experts))


def _step(plan, rng, router, position, child):
    parent, path_prob, accepted = _draft(plan, rng, child)
    tokens = rng.integers(VOCABULARY, size=len(parent) + 1)
    routes = router.routes(tokens)
    union = np.mean([len(np.unique(layer)) for layer in routes.swapaxes(0, 1)])
    verify_us = EXPERT_US * (union - plan.about.top_k) + TOKEN_US * len(parent)
    return {
        "position": position,
        "context": 128 + position,
        "parent": parent.tolist(),
        "token": tokens[1:].tolist(),
        "path_prob": path_prob.tolist(),
        "accepted": accepted.tolist(),
        "routes": base64.b64encode(routes.tobytes()).decode(),
        "draft_us": [DRAFT_US] * plan.about.depth,
        "verify_us": float(PLAIN_US + verify_us),
        "fixed_us": FIXED_US,
    }


def _draft(plan, rng, child):
    """Parent, path probability and acceptance of what any depth up to D and width up
    to N would verify; each level expands its best `topk` into `topk` children."""
    topk, beam = plan.about.topk, np.array([-1])
    parent, depth, path_prob, accepted = (
        np.empty(0, kind) for kind in (int, int, np.float32, bool)
    )
    for level in range(1, plan.about.depth + 1):
        draws = rng.dirichlet([child] * (topk + 1), len(beam)) + 1e-6
        shares = np.sort(draws[:, :topk])[:, ::-1] / draws.sum(axis=1, keepdims=True)
        upper, drawn = (
            np.cumsum(plan.trust * shares, axis=1),
            rng.random((len(beam), 1)),
        )
        hit = (drawn < upper) & (drawn >= upper - plan.trust * shares)
        # The root's index, -1, reads the last entry.
        above = np.append(path_prob, np.float32(1.0))[beam, None]
        reached = np.append(accepted, True)[beam, None]
        first = len(parent)
        parent = np.append(parent, np.repeat(beam, topk))
        depth = np.append(depth, np.full(hit.size, level))
        path_prob = np.append(path_prob, above * shares.astype(np.float32))
        accepted = np.append(accepted, reached & hit)
        beam = first + np.argsort(-path_prob[first:], kind="stable")[:topk]
    best = np.argsort(-path_prob, kind="stable")
    levels = range(1, plan.about.depth + 1)
    reaching = [best[depth[best] <= level][: plan.about.nodes] for level in levels]
    kept = np.unique(np.concatenate(reaching))
    place = np.full(len(parent) + 1, -1)
    place[kept] = np.arange(len(kept))
    return place[parent[kept]], path_prob[kept], accepted[kept]

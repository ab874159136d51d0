"""Made-up traces as files, whose truth is known: trees of `replay.synthetic`.

A node at depth d is accepted with `trust ** d` times its path probability. A token
activates the experts of largest score: a popularity that all tokens of a reply share,
plus the token's own. So unions grow less than uniform routing's.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evict_profile.drafting import DraftClock
from evict_profile.records import replace, to_mapping
from evict_profile.replay.synthetic import grow
from evict_profile.traces import Reply, TraceInfo
from evict_profile.traces.load import trace_of
from evict_profile.traces.schema import COLUMNS, Metadata, mark, route_type

ABOUT = TraceInfo(
    model="synthetic", layers=3, experts=16, top_k=2, depth=4, topk=4, nodes=24,
    engine="synthetic", engine_version="1", device="paper", threads=1,
    weights_sha256="0" * 64,
)  # fmt: skip
TINY = replace(ABOUT, layers=4, experts=32, top_k=4)
"""The shape of the model that the table of the known run covers."""
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
    about: TraceInfo = field(default_factory=lambda: ABOUT)

    def replies(self):
        for workload in self.workloads:
            for temperature in self.temperatures:
                for prompt in range(self.prompts):
                    for seed in range(self.seeds if temperature else 1):
                        yield Reply(workload, prompt, seed, temperature)


def make_trace(plan=None):
    return trace_of(make_table(plan or Plan()), "synthetic")


def write_trace(path, plan=None):
    pq.write_table(make_table(plan or Plan()), path)
    return path


def make_table(plan):
    parts = [trace_rows(key, reply_steps(plan, key)) for key in plan.replies()]
    clocks = tuple(make_clock(plan.about, batch) for batch in (1, 4))
    return mark(pa.concat_tables(parts), Metadata(plan.about, clocks))


def trace_rows(key, steps):
    """Steps of one reply as rows of a trace."""
    rows = [{**to_mapping(key), **step} for step in steps]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def make_clock(about, batch):
    level_us = DRAFT_US * (1.0 + 0.1 * (batch - 1))
    drafting = tuple(level_us * depth for depth in range(about.depth + 1))
    return DraftClock(batch, drafting, FIXED_US * batch, 0.25 * FIXED_US * batch)


def reply_steps(plan, key):
    """Steps of one reply; the same for the same key."""
    name = f"{plan.seed} {key.workload} {key.prompt} {key.seed} {key.temperature}"
    rng, about = np.random.default_rng(list(name.encode())), plan.about
    # Easy replies have small concentrations, so that most mass is on one child.
    child = rng.choice([0.05, 0.3]) if key.workload == "prose" else 0.05
    concentration = np.full((plan.tokens, about.topk + 1), child)
    nodes = grow(rng, concentration, about.depth, about.nodes, plan.trust)
    shape = (about.layers, about.experts)
    popularity = 1.5 * rng.gumbel(size=shape)
    own = rng.gumbel(size=(VOCABULARY, *shape))
    size = np.bincount(nodes.step, minlength=plan.tokens)
    ends = np.cumsum(size)
    steps = []
    for position, (end, count) in enumerate(zip(ends, size, strict=True)):
        tree = slice(end - count, end)
        tokens = rng.integers(VOCABULARY, size=count + 1)
        best = np.argsort(-(popularity + own[tokens]), axis=-1)[..., : about.top_k]
        routes = best.astype(route_type(about.experts))
        union = np.mean([len(np.unique(layer)) for layer in routes.swapaxes(0, 1)])
        verify_us = EXPERT_US * (union - about.top_k) + TOKEN_US * count
        steps.append(
            {
                "position": position,
                "context": 128 + position,
                "parent": np.maximum(nodes.parent[tree] - tree.start, -1).tolist(),
                "token": tokens[1:].tolist(),
                "path_prob": nodes.path_prob[tree].astype(np.float32).tolist(),
                "accepted": nodes.accepted[tree].tolist(),
                "routes": routes.tobytes(),
                "draft_us": [DRAFT_US] * about.depth,
                "verify_us": float(PLAIN_US + verify_us),
                "fixed_us": FIXED_US,
            }
        )
    return steps

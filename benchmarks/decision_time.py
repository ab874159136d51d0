"""How long a decision takes, beside plain numpy that is timed in turn with it.

    python benchmarks/decision_time.py --out decision_time.json

At 1, 16 and 64 requests of 60 nodes: a plan alone, and a whole step with conditional
acceptance and the choice of depth, which is five levels, a question before each, the
plan and what is learnt. Plain numpy is the ratio of a batch as one would first write
it. Times are medians with their 95 % interval over rounds; a ratio is of the fastest
rounds. With the compiled loops, a ratio above `MOST` ends in exit code 1.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import Answer, command, restart_on_one_thread
from evict_profile.io import data_root
from evict_profile.records import replace, to_mapping
from evict_profile.replay.policies import RATE_DEPTH, Policy, table_policies
from evict_profile.runtime import CostTable, Truncator
from evict_profile.runtime.decision import COMPILED
from evict_profile.stats import Floats, Ints, median_interval
from evict_profile.sweep.machine import cpu_name

TABLE = "examples/small_world/cost_tables/intel-*/*/*/1.0.3.json"
NODES, LEVELS, SIBLINGS = 60, 5, 3
CONTEXT, ROUNDS, CALLS = 200, 21, 50
PLAN, STEP, NUMPY = "plan", "whole step", "plain numpy"
MOST = {1: (1.2, 6.0), 16: (1.2, 6.5), 64: (1.1, 6.0)}
"""The largest ratio of a plan and of a whole step to plain numpy, by batch."""

Level = tuple[Floats, Ints | None]


@command
def main(arguments: Sequence[str]) -> int:
    """Print and write the times; 1 where a ratio is too large."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    answer, table = Answer(parser.parse_args(arguments).out, []), covered_everywhere()
    us = {batch: times(table, batch) for batch in MOST}
    answer.write({"cpu": cpu_name(), "compiled": COMPILED, "us": us})
    print(json.dumps(us, indent=1))
    return int(COMPILED and any(_slow(us[batch], MOST[batch]) for batch in MOST))


def covered_everywhere() -> CostTable:
    """A table that knows acceptance and drafting, with costs of every size timed."""
    table = CostTable.load(next(data_root().glob(TABLE)))
    tokens = (1, max(MOST) * (NODES + 1))
    reach = {"batch": (1, max(MOST)), "tokens": tokens, "width": tokens}
    return replace(table, fit=replace(table.fit, domain=table.fit.domain | reach))


def times(table: CostTable, batch: int) -> dict[str, dict[str, float]]:
    """Microseconds of each contender in random turns, and over plain numpy."""
    levels, drafts = random_trees(batch)
    truncator = Truncator(table, drafts="topk", acceptance="target-only")
    policy = table_policies(table, LEVELS)[RATE_DEPTH]()
    cost_us = 1e3 + 10.0 * np.arange(batch * (NODES + 1) + 1.0)
    contenders: dict[str, Callable[[], object]] = {
        PLAN: partial(truncator.plan, torch.from_numpy(drafts), CONTEXT),
        STEP: partial(decide_step, policy, levels),
        NUMPY: partial(plain_numpy, drafts, cost_us),
    }
    samples: dict[str, list[float]] = {what: [] for what in contenders}
    for seed in range(ROUNDS):
        for what in random.Random(seed).sample(list(contenders), len(contenders)):
            contenders[what]()  # The first costs what later ones look up.
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                contenders[what]()
            samples[what].append((time.perf_counter_ns() - start) / 1e3 / CALLS)
    found = {what: to_mapping(median_interval(us)) for what, us in samples.items()}
    for what, us in samples.items():
        found[what]["over_numpy"] = min(us) / min(samples[NUMPY])
    return found


def _slow(us: dict[str, dict[str, float]], most: tuple[float, float]) -> bool:
    pairs = zip((PLAN, STEP), most, strict=True)
    return any(us[what]["over_numpy"] > limit for what, limit in pairs)


def decide_step(policy: Policy, levels: Sequence[Level]) -> None:
    """All that a policy is asked and shown in one step, whatever it says of depth."""
    step = policy.begin(len(levels[0][0]), CONTEXT, NODES)
    for level in levels:
        step.deeper()
        step.extend(*level)
    step.keep()
    policy.observe(len(levels[0][0]), 1e4)


def random_trees(batch: int) -> tuple[list[Level], Floats]:
    """Levels with siblings of random shares below the best parents, and all paths."""
    rng, fresh, levels = np.random.default_rng(0), NODES // LEVELS, []
    paths = [np.ones((batch, 1))]
    for level in range(LEVELS):
        shape = (fresh // SIBLINGS, SIBLINGS) if level else (1, fresh)
        shares = rng.dirichlet(np.ones(shape[1] + 1), (batch, shape[0]))[..., 1:]
        prob = np.sort(shares, axis=2)[:, :, ::-1].copy()
        parent = np.argsort(-paths[-1], axis=1)[:, : shape[0]]
        above = np.take_along_axis(paths[-1], parent, axis=1)[:, :, None]
        paths.append((above * prob).reshape(batch, fresh))
        levels.append((prob, parent if level else None))
    return levels, np.concatenate(paths[1:], axis=1).astype(np.float32)


def plain_numpy(path_prob: Floats, cost_us: Floats) -> Ints:
    """EVICT's ratio over a batch as one would first write it; int64 [B]."""
    batch, flat = len(path_prob), path_prob.reshape(-1)
    order = np.argsort(-flat, kind="stable")
    benefit = batch + np.append(0.0, np.cumsum(flat[order], dtype=float))
    best = np.argmax(benefit / cost_us[batch : batch + len(benefit)])
    keep = np.zeros(len(flat), dtype=bool)
    keep[order[:best]] = True
    return 1 + keep.reshape(path_prob.shape).sum(axis=1)  # type: ignore[no-any-return]


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))

"""How long a decision takes, beside plain numpy that is timed in turn with it.

    .venv-vllm/bin/python benchmarks/decision_time.py --out decision_time.json

At 1, 16 and 64 requests of 60 nodes, on other trees in each call: a plan alone; a whole
step with conditional acceptance and the choice of depth, which is five levels, a
question before each, the plan and what is learnt; and the parts of SGLang's step on the
CPU: reading its tensors, the decision with what is learnt, and the cut. Half of what is
kept is accepted. Plain numpy is the ratio of a batch as one would first write it. Where
vLLM is installed, its selection is timed too, of chains with the same probabilities of
acceptance. Times are of this thread alone, medians with their 95 % interval over
rounds; a ratio is of the fastest rounds. With the compiled loops, a ratio above `MOST`
or a missed aim ends in exit code 1.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.common import Answer, command, restart_on_one_thread
from evict_profile.integrations.sglang.decision import Chooser, WidthChoice
from evict_profile.integrations.sglang.modes import fetch
from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.io import data_root
from evict_profile.records import replace, to_mapping
from evict_profile.replay.policies import RATE_DEPTH, Policy, table_policies
from evict_profile.runtime import CostTable, Truncator
from evict_profile.runtime.decision import COMPILED
from evict_profile.stats import Floats, Ints, median_interval
from evict_profile.sweep.machine import cpu_name

TABLE = "examples/small_world/cost_tables/intel-*/*/*/1.0.3.json"
NODES, LEVELS, SIBLINGS, TOPK = 60, 5, 3, 8
CONTEXT, ROUNDS, CALLS, TREES = 200, 21, 50, 10
CAPTURED = (1, 2, 4, 8, 16, 32, NODES + 1)
PLAN, STEP, NUMPY, VLLM = "plan", "whole step", "plain numpy", "vLLM's get_num_tokens"
MISSED = "missed"
READ, CHOOSE, CUT = "SGLang: read", "SGLang: decide", "SGLang: cut"
MOST = {
    1: {PLAN: 1.1, STEP: 3.2, CHOOSE: 4.5},
    16: {PLAN: 0.6, STEP: 1.6, CHOOSE: 1.7},
    64: {PLAN: 0.35, STEP: 0.75, CHOOSE: 0.9},
}
"""The largest ratio to plain numpy, by batch."""
AIMS_US = {1: (45.0, 17.5), 64: (300.0, 330.0)}
"""The longest whole step by batch, judged where plain numpy takes no longer than on a
quiet Intel Xeon of 2.5 GHz."""

Level = tuple[Floats, Ints | None]
Contenders = Mapping[str, Callable[[], object]]


class Trees(NamedTuple):
    """Drafts of a batch by level; all their path probabilities, float32 [B, N]; chains
    with the same ones, each token's given those before; and trees as SGLang has them.
    """

    levels: list[Level]
    path_prob: Floats
    chains: Floats
    drafted: Drafted


@command
def main(arguments: Sequence[str]) -> int:
    """Print and write the times; 1 where a ratio is too large."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    answer, table = Answer(parser.parse_args(arguments).out, []), covered_everywhere()
    us = {batch: times(contenders(table, batch)) for batch in MOST}
    aims = {b: judged(us[b], *aim) for b, aim in AIMS_US.items() if b in us}
    found = {"cpu": cpu_name(), "compiled": COMPILED, "us": us, "aims": aims}
    answer.write(found)
    print(json.dumps(found, indent=1))
    slow = [
        us[batch][what]["over_numpy"] > most
        for batch, limits in MOST.items()
        for what, most in limits.items()
    ]
    return int(COMPILED and (any(slow) or MISSED in aims.values()))


def judged(
    us: Mapping[str, Mapping[str, float]], aim_us: float, quiet_us: float
) -> str:
    if us[NUMPY]["value"] > quiet_us:
        return f"not judged: plain numpy takes more than {quiet_us} us"
    return MISSED if us[STEP]["value"] > aim_us else "met"


def covered_everywhere() -> CostTable:
    """A table that knows acceptance and drafting, with costs of every size timed."""
    table = CostTable.load(next(data_root().glob(TABLE)))
    tokens = (1, max(MOST) * (NODES + 1))
    reach = {"batch": (1, max(MOST)), "tokens": tokens, "width": tokens}
    return replace(table, fit=replace(table.fit, domain=table.fit.domain | reach))


def contenders(table: CostTable, batch: int) -> Contenders:
    """What is timed, by name; each call takes the next of `TREES` batches."""
    given = [random_trees(batch, seed) for seed in range(TREES)]
    truncator = Truncator(table, drafts="topk", acceptance="target-only")
    policy = table_policies(table, LEVELS)[RATE_DEPTH]()
    chooser = Chooser(table, CAPTURED)
    cost_us = 1e3 + 10.0 * np.arange(batch * (NODES + 1) + 1.0)
    plan = truncator.plan(torch.from_numpy(given[0].path_prob), CONTEXT)
    kept = np.tile(np.arange(NODES) < CAPTURED[-3] - 1, (batch, 1))
    choice = WidthChoice(replace(plan, host_keep=kept), 0.0)

    def each(decide: Callable[[Trees], object]) -> Callable[[], object]:
        trees: Iterator[Trees] = cycle(given)
        return lambda: decide(next(trees))

    found = {
        PLAN: each(lambda x: truncator.plan(torch.from_numpy(x.path_prob), CONTEXT)),
        STEP: each(lambda x: decide_step(policy, x.levels)),
        NUMPY: each(lambda x: plain_numpy(x.path_prob, cost_us)),
        READ: each(lambda x: read(x.drafted)),
        CHOOSE: each(lambda x: decide_width(chooser, x.drafted)),
        CUT: each(lambda x: x.drafted.at(choice.places)),
    }
    if find_spec("vllm"):
        names = [str(request) for request in range(batch)]
        asked = dict.fromkeys(names, NODES + 1), dict.fromkeys(names, [0] * NODES)
        manager = vllm_manager(batch, cost_us)
        found[VLLM] = each(partial(vllm_budget, manager, asked))
    return found


def times(contenders: Contenders) -> dict[str, dict[str, float]]:
    """Microseconds of each contender in random turns, and over plain numpy."""
    samples: dict[str, list[float]] = {what: [] for what in contenders}
    for seed in range(ROUNDS):
        for what in random.Random(seed).sample(list(contenders), len(contenders)):
            contenders[what]()  # The first costs what later ones look up.
            start = time.thread_time_ns()
            for _ in range(CALLS):
                contenders[what]()
            samples[what].append((time.thread_time_ns() - start) / 1e3 / CALLS)
    found = {what: to_mapping(median_interval(us)) for what, us in samples.items()}
    for what, us in samples.items():
        found[what]["over_numpy"] = min(us) / min(samples[NUMPY])
    return found


def decide_step(policy: Policy, levels: Sequence[Level]) -> None:
    """All that a policy is asked and shown in one step, whatever it says of depth."""
    step = policy.begin(len(levels[0][0]), CONTEXT, NODES)
    for level in levels:
        step.deeper()
        step.extend(*level)
    kept = step.keep()
    policy.observe(len(kept) + np.count_nonzero(kept) // 2, 1e4)


def read(drafted: Drafted) -> list[Any]:
    """Without a device nothing is copied."""
    nodes = (drafted.path_prob, drafted.index, drafted.parent_list)
    lengths = drafted.index[:, 0]
    return fetch({}, lengths, lengths, *nodes)


def decide_width(chooser: Chooser, drafted: Drafted) -> None:
    path_prob, index = drafted.path_prob.numpy(), drafted.index.numpy()
    parent_list = drafted.parent_list.numpy()
    made = chooser.choose(path_prob, index, parent_list, drafted.topk, CONTEXT)
    chooser.learn((made.plan.host_widths + 1) // 2)


def random_trees(batch: int, seed: int = 0) -> Trees:
    """Levels with siblings of random shares below the best parents, and all paths."""
    rng, fresh, levels = np.random.default_rng(seed), NODES // LEVELS, []
    paths = [np.ones((batch, 1))]
    for level in range(LEVELS):
        shape = (fresh // SIBLINGS, SIBLINGS) if level else (1, fresh)
        shares = rng.dirichlet(np.ones(shape[1] + 1), (batch, shape[0]))[..., 1:]
        prob = np.sort(shares, axis=2)[:, :, ::-1].copy()
        parent = np.argsort(-paths[-1], axis=1)[:, : shape[0]]
        above = np.take_along_axis(paths[-1], parent, axis=1)[:, :, None]
        paths.append((above * prob).reshape(batch, fresh))
        levels.append((prob, parent if level else None))
    path_prob = np.concatenate(paths[1:], axis=1).astype(np.float32)
    survival = -np.sort(-path_prob, axis=1)
    chains = survival / np.concatenate((np.ones((batch, 1)), survival[:, :-1]), axis=1)
    return Trees(levels, path_prob, chains.astype(np.float32), eagle_trees(batch, rng))


def eagle_trees(batch: int, rng: np.random.Generator) -> Drafted:
    """The best `NODES` of those that SGLang drafts, `TOPK` below each of `TOPK`."""

    def shares(parents: int) -> Floats:
        drawn = rng.dirichlet(np.full(40, 0.15), (batch, parents))
        return np.sort(drawn)[..., : -TOPK - 1 : -1]

    last, begin = shares(1)[:, 0], 0
    paths, groups = [last], [np.full((batch, 1), -1)]
    for level in range(1, LEVELS):
        best = np.argsort(-last, axis=1, kind="stable")[:, :TOPK]
        groups.append(begin + best)
        begin = TOPK + (level - 1) * TOPK**2
        above = np.take_along_axis(last, best, axis=1)[:, :, None]
        last = (above * shares(TOPK)).reshape(batch, -1)
        paths.append(last)
    every = np.concatenate(paths, axis=1).astype(np.float32)
    index = np.sort(np.argsort(-every, axis=1, kind="stable")[:, :NODES], axis=1)
    chosen = np.take_along_axis(every, index, axis=1)
    parents, places, scores = map(
        torch.from_numpy, (np.concatenate(groups, axis=1), index, chosen)
    )
    return Drafted(parents, places, places, scores, TOPK)


def vllm_manager(batch: int, cost_us: Floats) -> Any:
    """vLLM's own, with these costs."""
    server = import_module("tests.vllm.server")
    manager = server.make_manager(batch, NODES)
    manager.cost_tables = np.zeros(batch + 1), cost_us / 1e3
    return manager


def vllm_budget(manager: Any, asked: tuple[Any, Any], trees: Trees) -> int:
    """Tokens that vLLM verifies; which ones it chooses on the device."""
    manager._stale_confidences[0].np = trees.chains
    return int(manager.get_num_tokens(*asked))


def plain_numpy(path_prob: Floats, cost_us: Floats) -> Ints:
    """EVICT's ratio over a batch as one would first write it; int64 [B]."""
    batch, flat = len(path_prob), path_prob.reshape(-1)
    order = np.argsort(-flat, kind="stable")
    benefit = batch + np.append(0.0, np.cumsum(flat[order], dtype=float))
    best = np.argmax(benefit / cost_us[batch : batch + len(benefit)])
    keep = np.zeros(len(flat), dtype=bool)
    keep[order[:best]] = True
    return 1 + keep.reshape(path_prob.shape).sum(axis=1)


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))

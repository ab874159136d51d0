"""Rivals beside our rules: throughput lost to an oracle, by text and batch.

Rivals of chains (one drafted token a level) run on recorded chains, rivals of trees on
recorded trees; each is held against the oracle of its own drafts, which knows what is
accepted. Constants that a source leaves open are tuned on the prompts that calibrate.
A batch of B decodes the text B times, so that runs of all batches have as many steps;
what a policy spends on learning is a part of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from benchmarks.claims.evict import rule
from benchmarks.claims.rivals import (
    AdaptiveSteps,
    BatchGate,
    DynamicDepth,
    ServedSearch,
    Utility,
    chains,
)
from benchmarks.claims.worlds import SEEDS, World, sums_of
from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.oracle import oracle_run
from evict_profile.replay.policies import (
    RATE_DEPTH,
    RATIO,
    Fixed,
    MakePolicy,
    Policy,
)
from evict_profile.replay.sums import COLUMNS, Sums, sums_by_prompt, tokens_per_s
from evict_profile.stats import Estimate

TEXTS, BATCHES = ("code", "prose", MIXED), (1, 4, 16)
WIDTHS = (4, 8, 12, 24)
CONFIDENCES = (0.1, 0.3, 0.5, 0.7, 0.9)
OURS = (RATIO, RATE_DEPTH)


@dataclass(frozen=True)
class Regret:
    """`lost` to the oracle; `ours` is the speed of rate and depth over it."""

    text: str
    policy: str
    batch: int
    lost: Estimate
    ours: Estimate


def of_rivals(world: World) -> Iterator[Regret]:
    """Policies by text and batch, of recorded chains or of recorded trees."""
    own = of_chains if world.whole.about.topk == 1 else of_trees
    for text in TEXTS:
        yield from own(world, text)


def of_chains(world: World, text: str) -> Iterator[Regret]:
    """Ours, and rivals that choose the length of a chain."""
    depth = world.whole.about.depth
    searches = {seed: ServedSearch(chains(depth)) for seed in range(SEEDS)}
    for batch in BATCHES:
        replay = long_replay(world, text, batch)
        makes: dict[str, MakePolicy] = {
            "plain decoding": lambda: Fixed("", 0, 1),
            "best fixed length, in hindsight": always(fastest(replay, chains(depth))),
            **of_ours(replay),
            AdaptiveSteps.name: partial(AdaptiveSteps, depth, batch),
            Utility.name: lambda: Utility(chains(depth)),
        }
        sums = {name: replay.sums(make) for name, make in makes.items()}
        sums[ServedSearch.name] = sums_of(replay, searches)
        yield from compared(replay, sums)


def of_trees(world: World, text: str) -> Iterator[Regret]:
    """Ours, and rivals that cut trees, tuned on the prompts that calibrate."""
    depth = world.whole.about.depth
    pairs = [Fixed("", *pair) for pair in product(range(1, depth + 1), WIDTHS)]
    settings = product(WIDTHS, CONFIDENCES)
    dynamic = [DynamicDepth("", depth, *setting) for setting in settings]
    gated = [BatchGate("", depth, width) for width in WIDTHS]
    for batch in BATCHES:
        replay = long_replay(world, text, batch)
        before = world.replay(text, batch, half=0)
        makes: dict[str, MakePolicy] = {
            "best fixed depth and width, in hindsight": always(fastest(replay, pairs)),
            **of_ours(replay),
            "dynamic depth": always(fastest(before, dynamic)),
            "ECHO's batch gate": always(fastest(before, gated)),
        }
        sums = {name: replay.sums(make) for name, make in makes.items()}
        yield from compared(replay, sums)


def long_replay(world: World, text: str, batch: int) -> ScenarioReplay:
    replay = world.replay(text, batch)
    replay.arrays.tokens *= batch
    return replay


def compared(replay: ScenarioReplay, sums: Mapping[str, Sums]) -> Iterator[Regret]:
    most = tokens_per_s(oracle_sums(replay))
    speed = {name: tokens_per_s(each) for name, each in sums.items()}
    estimate, ratio = replay.bootstrap.estimate, replay.bootstrap.ratio
    text, batch = replay.scenario.workload, replay.scenario.batch
    for name, own in speed.items():
        lost, beside = estimate(1.0 - own / most), ratio(speed[RATE_DEPTH] / own)
        yield Regret(text, name, batch, lost, beside)


def oracle_sums(replay: ScenarioReplay) -> Sums:
    """The oracle in the first order of replies, which all resamples share."""
    costs = replay.costs
    run = oracle_run(replay.arrays, costs, costs.batch, seed=0)
    by_prompt = sums_by_prompt(replay.arrays, run, costs.undrafted_us)
    columns = replay.bootstrap.sums(by_prompt[None].repeat(SEEDS, axis=0))
    return dict(zip(COLUMNS, columns, strict=True))


def of_ours(replay: ScenarioReplay) -> dict[str, MakePolicy]:
    depth = replay.arrays.depth
    return {name: rule(replay.table, name, depth) for name in OURS}


def fastest(replay: ScenarioReplay, policies: Sequence[Policy]) -> Policy:
    """In the first order of replies."""
    return max(policies, key=lambda each: replay.run(each, 0).tokens_per_s)


def always(policy: Policy) -> MakePolicy:
    """Of one that learns nothing, and so needs no copy."""
    return lambda: policy

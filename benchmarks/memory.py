"""How long a past should the runtime's rule remember, and what does trust buy?

The rule maximises throughput over the last steps and this one. Too short a memory and
it is EVICT's ratio, which cuts easy steps too early and hard ones too late where they
follow each other by chance. Too long a memory and it prices time at a rate that the
text at hand does not earn, where difficulty comes in stretches. Nobody knows which
a server will see, so no column counts alone. Trust scales what scores claim by what
became of them: it must pay where the drafter is too sure of itself, and cost little
where it is not.

Printed, as Markdown: throughput lost against the best rule for the same trees, in per
cent, mean over all cost shapes but the flat one, with 95 % intervals over seeds. In
the first table memory varies, with trust and without; in the second trust does, at
the runtime's memory. `worst` names the mix that loses most.

    python benchmarks/memory.py
    python benchmarks/memory.py --seeds 20 --steps 2000 --nodes 60
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

from benchmarks.command import at_least, command, count
from evict_profile.bench.compare import FEWEST_STEPS
from evict_profile.bench.contest import Contest, Score
from evict_profile.bench.interval import student_interval
from evict_profile.bench.mixes import MIXES, Mix
from evict_profile.bench.render import line
from evict_profile.bench.shapes import cost_shapes
from evict_profile.runtime.past import Past

MEMORY_STEPS = (0.5, 1.0, 2.0, 4.0, 8.0, 32.0)
TRUST_STEPS = (16.0, 64.0, 256.0)
PRIOR_TOKENS = (1.0, 4.0, 16.0)
NO_TRUST = 1e18
"""A prior that no step moves. Infinity over infinity would be no number."""

Rule = Callable[[Contest], Score]
Losses = dict[str, list[float]]
"""Per cent lost by each rule, one a seed."""


def remembering(**settings: float) -> Rule:
    """The runtime's rule with other constants."""
    return lambda contest: contest.rate(Past(**settings))


REFERENCES: dict[str, Rule] = {
    "best fixed width": lambda contest: contest.fixed(contest.best_fixed_width()),
    "ratio": lambda contest: contest.ratio(),
    "rate of the past": lambda contest: contest.past_rate(),
}
MEMORIES: dict[str, Rule] = {
    f"{steps:g} steps, {named}": remembering(
        memory_half_life_steps=steps, trust_prior_tokens=prior
    )
    for named, prior in (("no trust", NO_TRUST), ("trust", Past.trust_prior_tokens))
    for steps in MEMORY_STEPS
}
TRUSTS: dict[str, Rule] = {
    f"{steps:g} steps, prior {prior:g}": remembering(
        trust_half_life_steps=steps, trust_prior_tokens=prior
    )
    for steps in TRUST_STEPS
    for prior in PRIOR_TOKENS
}


def lost(rules: dict[str, Rule], mix: Mix, nodes: int, seed: int, steps: int) -> Losses:
    """What each rule loses on one simulation, one value a shape."""
    workload = mix.draw(seed, steps).cut(nodes)
    losses: Losses = {name: [] for name in rules}
    for shape in cost_shapes()[1:]:
        contest = Contest(workload, shape)
        best_us = contest.optimum().us_per_token
        for name, rule in rules.items():
            losses[name].append(100.0 * (1.0 - best_us / rule(contest).us_per_token))
    return losses


def lost_over_seeds(
    rules: dict[str, Rule], mix: Mix, nodes: int, seeds: int, steps: int
) -> Losses:
    """What each rule loses, mean over shapes, one value a seed."""
    runs = [lost(rules, mix, nodes, seed, steps) for seed in range(seeds)]
    return {name: [sum(run[name]) / len(run[name]) for run in runs] for name in rules}


def table(title: str, rules: dict[str, Rule], by_mix: dict[str, Losses]) -> str:
    """A line a rule, a column a mix."""
    return "\n".join(_lines(title, rules, by_mix))


def _lines(
    title: str, rules: dict[str, Rule], by_mix: dict[str, Losses]
) -> Iterator[str]:
    yield line((title, *by_mix, "worst"))
    yield line(("---", *("--:" for _ in by_mix), "---"))
    for name in rules:
        found = {mix: student_interval(each[name]) for mix, each in by_mix.items()}
        worst = max(found, key=lambda mix: found[mix].mean)
        cells = (f"{f.mean:.2f} ± {f.high - f.mean:.2f}" for f in found.values())
        yield line((name, *cells, worst))


@command
def main(words: Sequence[str]) -> None:
    """Simulate, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    # One seed has no interval, and fewer steps no stretch of every kind.
    parser.add_argument("--seeds", type=at_least(2), default=20)
    parser.add_argument("--steps", type=at_least(FEWEST_STEPS), default=2000)
    parser.add_argument("--nodes", type=count, default=31)
    asked = parser.parse_args(words)
    rules = REFERENCES | MEMORIES | TRUSTS
    by_mix = {
        mix.name: lost_over_seeds(rules, mix, asked.nodes, asked.seeds, asked.steps)
        for mix in MIXES
    }
    print(table("memory", REFERENCES | MEMORIES, by_mix), end="\n\n")
    print(table("trust", TRUSTS, by_mix))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

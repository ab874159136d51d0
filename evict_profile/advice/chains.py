"""Rules for the length of a chain, replayed on a trace under a table's prices.

llama.cpp drafts a chain until it is `n_max` long or a token's own probability is below
`p_min`; the token that fell was drafted and is dropped, so its drafting is paid. A rule
of an open change (llama.cpp PR 17034) drafts until the path's probability falls below
`costs[m]`, the cost a token of verifying m + 1, relative to one; the token that fell is
kept. That compares a probability with an average cost, where the next token costs a
marginal one. Rules are tuned on every second prompt and scored on the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from evict_profile.stats import Bootstrap, Estimate, Floats, Ints
from evict_profile.traces import Trace
from evict_profile.traces.trace import Reply, Step

DEFAULT_MOST = 3
"""llama.cpp's --spec-draft-n-max where nobody sets it."""
CHANCES = tuple(round(0.05 * i, 2) for i in range(20))


@dataclass(frozen=True)
class ChainRule:
    """When drafting a chain stops; with `costs`, by PR 17034 and not by `p_min`."""

    n_max: int
    p_min: float = 0.0
    costs: tuple[float, ...] = ()

    def drafts(self, path_prob: Floats) -> tuple[int, int]:
        """Tokens of a chain that are verified, and that were drafted."""
        longest = path_prob[: self.n_max]
        if self.costs:
            last = len(self.costs) - 1
            limit = [self.costs[min(m + 1, last)] for m in range(len(longest))]
            fell = np.flatnonzero(longest < limit)
            kept = int(fell[0]) + 1 if len(fell) else len(longest)
            return kept, kept
        own = longest / np.concatenate(([1.0], longest[:-1]))
        fell = np.flatnonzero(own < self.p_min)
        kept = int(fell[0]) if len(fell) else len(longest)
        return kept, kept + bool(len(fell))


@dataclass(frozen=True, eq=False)
class ChainReplay:
    """The best-child chains of a trace, at prices of one request.

    Attributes:
        verify_us: float64 [tokens + 1], by tokens verified.
        draft_us: time to draft so many tokens.
        alike_us: as `verify_us`, if all tokens woke one token's experts.
        new_graph_us: beside it, where the last chain had another length.
    """

    trace: Trace
    verify_us: Floats
    draft_us: Callable[[int], float]
    alike_us: Floats
    new_graph_us: float = 0.0

    @property
    def longest(self) -> int:
        """Drafts that the trace has and the table prices."""
        deepest = max(int(step.depth.max(initial=0)) for step in self.trace.steps)
        return min(deepest, len(self.verify_us) - 2)

    def by_prompt(self, rule: ChainRule) -> Floats:
        """Tokens and microseconds of each prompt's replies, float64 [prompts, 2]."""
        index: dict[tuple[str, int], int] = {}
        found = np.zeros((len(self.trace.replies), 2))
        for reply in self.trace.replies:
            at = index.setdefault((reply.workload, reply.prompt), len(index))
            found[at] += self._decode(reply, rule)
        return found[: len(index)]

    def tuned(self, rules: Sequence[ChainRule]) -> ChainRule:
        """The fastest of the rules on every second prompt."""

        def us_per_token(rule: ChainRule) -> float:
            tokens, us = self.by_prompt(rule)[::2].sum(axis=0)
            return float(us / tokens)

        return min(rules, key=us_per_token)

    def speed(self, rule: ChainRule) -> Estimate:
        """Over plain decoding, on the prompts that nothing is tuned on."""
        ours, plain = (self.by_prompt(r)[1::2] for r in (rule, ChainRule(0)))
        bootstrap = Bootstrap(len(ours))
        tokens, us = bootstrap.sums(ours)
        plain_tokens, plain_us = bootstrap.sums(plain)
        return bootstrap.estimate(tokens / us * plain_us / plain_tokens)

    def rules(self) -> dict[str, ChainRule]:
        """What llama.cpp does untold, the best flags, and PR 17034 at these prices.

        And the best `n_max` in the eyes of who prices verification by dummy tokens.
        """
        lengths = range(self.longest + 1)
        believed = replace(self, verify_us=self.alike_us)
        flags = [ChainRule(n, p) for n, p in product(lengths[1:], CHANCES)]
        return {
            "default": ChainRule(min(DEFAULT_MOST, self.longest)),
            "best n-max": self.tuned([ChainRule(n) for n in lengths]),
            "best n-max with p-min": self.tuned([ChainRule(0), *flags]),
            "one token's experts": believed.tuned([ChainRule(n) for n in lengths]),
            "PR 17034": ChainRule(self.longest, costs=batch_costs(self.verify_us)),
        }

    def _decode(self, reply: Reply, rule: ChainRule) -> tuple[float, float]:
        place = tokens = last = 0
        us = 0.0
        while place < len(reply.steps):
            step = reply.steps[place]
            chain = best_children(step)
            kept, drafted = rule.drafts(step.path_prob[chain])
            committed = step.committed(chain[:kept])
            us += float(self.verify_us[kept + 1]) + self.draft_us(drafted)
            us, last = us + self.new_graph_us * (kept != last), kept
            tokens += committed
            place += committed if reply.dense else 1
        return tokens, us


def best_children(step: Step) -> Ints:
    """The chain of a tree's best children: indices of its nodes, int64 [length]."""
    chain, last = list[int](), -1
    for node, (above, rank) in enumerate(zip(step.parent, step.rank, strict=True)):
        if rank == 0 and above == last:
            chain.append(node)
            last = node
    return np.array(chain, np.int64)


def batch_costs(verify_us: Floats) -> tuple[float, ...]:
    """GGML_BATCH_COSTS: at m the cost a token of verifying m + 1, relative to one."""
    tokens = np.arange(1, len(verify_us))
    costs = verify_us[1:] / tokens / verify_us[1]
    return tuple(round(float(cost), 3) for cost in costs)

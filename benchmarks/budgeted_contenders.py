"""Ways to truncate, under every expert budget: who takes part in budgets_clock.py.

Whatever a policy knows of prices it knows of the budgeted engine's: fixed pairs are the
best of a replay in which no step wakes more experts than the budget has, and a guided
policy decides with the table that `within_budget` makes. That acceptance stays as it
was traced is assumed there, and measured afterwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.turns import Contender
from evict_profile.budgets.record import EXPONENTS, RANKINGS
from evict_profile.budgets.settings import (
    ALL,
    DEPLOYABLE,
    LAYERS,
    NONE,
    STATIC,
    TRUNCATION,
)
from evict_profile.errors import ConfigError
from evict_profile.replay.cell import Place
from evict_profile.replay.contest import SERVED_TOKENS, Contest
from evict_profile.replay.ground import Ground
from evict_profile.replay.guided import guided
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    DEPTH_LINKS,
    FULL_TREE,
    PAIR_LINKS,
    SERVED_TREE,
    Fixed,
    MakePolicy,
    full_tree,
    plain_decoding,
)
from evict_profile.runtime import CostTable
from evict_profile.stats import Ints
from evict_profile.traces import Trace
from runners.tree_decoding.budgets import Budget, make_budget
from runners.tree_decoding.session import TraceSession

RULES = tuple(rule for rule in DEPLOYABLE if rule not in (STATIC, LAYERS, ALL))
"""Those that learn nothing beforehand."""


@dataclass(frozen=True)
class Allowance:
    """A budget by name.

    Attributes:
        name: "mass 16"; "none".
        experts: that a layer may wake; all, if none.
        budget: what the engine is given.
    """

    name: str
    experts: int
    budget: Budget | None = None


@dataclass(frozen=True)
class Cut:
    """A way to truncate, and how it was set by the replay."""

    name: str
    setting: str
    make: MakePolicy


@dataclass(frozen=True)
class Entry:
    """A way to truncate under a budget."""

    cut: str
    setting: str
    budget: str
    contender: Contender

    @property
    def name(self) -> str:
        """ "full tree, budget mass 16"."""
        return f"{self.cut}, budget {self.budget}"


class Capped(Ground):
    """A trace whose verifications wake at most so many experts of a layer."""

    def __init__(self, trace: Trace, experts: int) -> None:
        super().__init__(trace)
        self.experts = experts

    def union(self, places: Ints) -> float:
        """min(U, B), as a budgeted table prices it."""
        return min(super().union(places), float(self.experts))


def allowances(words: Sequence[str], session: TraceSession) -> list[Allowance]:
    """None, then the budgets that are asked for, each once.

    Raises:
        ConfigError: no rule with a number, or no fewer than all experts.
        Refusal: no layer could keep it.
    """
    asked = [allowance(word, session) for word in dict.fromkeys(words)]
    return [Allowance(NONE, session.experts), *asked]


def allowance(words: str, session: TraceSession) -> Allowance:
    """The budget that "mass 16" names; see `allowances`."""
    rule, _, count = words.rpartition(" ")
    if rule not in RULES or not count.isdigit():
        raise ConfigError(
            f"--budget {words!r}: give a rule and a number of experts, such as "
            f"'mass 16'; rules that need no learning are {', '.join(RULES)}"
        )
    shape = session.world.target.shape
    if int(count) >= shape.experts:
        raise ConfigError(
            f"--budget {words!r}: a layer has {shape.experts} experts, so this is no "
            "budget, and none is compared anyhow; give fewer"
        )
    ask = {
        "per_layer": [int(count)] * shape.layers,
        "mode": "truncation" if rule == TRUNCATION else "substitution",
        "ranking": RANKINGS.get(rule, "mass"),
        "exponent": EXPONENTS.get(rule, 0.0),
        "kept": None,
    }
    budget = make_budget(ask, shape.top_k, shape.experts, session.device)
    return Allowance(words, int(count), budget)


def line_up(
    part: Trace, table: CostTable, place: Place, allowed: Sequence[Allowance]
) -> Iterator[Entry]:
    """Plain decoding, then every way to truncate under every budget.

    Plain decoding takes no budget: one token's own experts always fit.
    """

    @lru_cache(1)
    def contest(experts: int) -> Contest:
        capped = Capped(part, experts)
        return Contest(capped, table.within_budget(experts), place, 1)

    everything = allowed[0].experts
    yield entry(contest(everything), Cut(AR, "", plain_decoding), allowed[0])
    tuned: dict[int, list[Cut]] = {}
    for each in allowed:
        found = contest(each.experts)
        tuned[each.experts] = tuned.get(each.experts) or list(cuts(found))
        for cut in tuned[each.experts]:
            yield entry(found, cut, each)


def entry(contest: Contest, cut: Cut, allowed: Allowance) -> Entry:
    """A contender that is expected to take the replay's steps."""
    steps = len(contest.walk(cut.make(), 0).rows)
    contender = Contender(cut.make, steps, allowed.budget)
    return Entry(cut.name, cut.setting, allowed.name, contender)


def cuts(contest: Contest) -> Iterator[Cut]:
    """Ways to truncate, the whole tree first; fixed pairs are the replay's best.

    Raises:
        ConfigError: the table does not know what links and levels are worth.
    """
    depth, nodes = contest.ground.depth, contest.ground.nodes
    yield Cut(FULL_TREE, f"{nodes} nodes", lambda: full_tree(nodes, depth))
    if nodes >= SERVED_TOKENS:
        served = Fixed(SERVED_TREE, depth, SERVED_TOKENS)
        yield Cut(SERVED_TREE, "", lambda: served)
    best = max(contest.tune(), key=lambda point: point.tokens_per_s)
    pair = Fixed(BEST_PAIR, best.depth, best.width)
    yield Cut(BEST_PAIR, f"{best.width} at depth {best.depth}", lambda: pair)
    known = guided(contest.table, depth)
    if DEPTH_LINKS not in known:
        raise ConfigError(
            f"--table {contest.table.path}: has no links or no clocks of drafting; "
            "give one that was calibrated with: evict-profile calibrate"
        )
    yield Cut(PAIR_LINKS, *contest.linked_pair())
    yield Cut(DEPTH_LINKS, "", known[DEPTH_LINKS])

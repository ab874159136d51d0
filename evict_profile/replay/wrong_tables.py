"""Wrong tables: a policy decides with one, and true latencies are charged.

A start-up profile with dummy tokens, as vLLM's and SGLang's, activates the same experts
with every token, or none; another device's table is wrong in everything. The adaptive
policy of a verdict is compared with itself, deciding with the right table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.policies import table_policies
from evict_profile.replay.sums import tokens_per_s
from evict_profile.stats import Estimate, Floats
from evict_profile.table import COMPOSED, ActivationCurve, CostTable, tables_below


@dataclass(frozen=True)
class WrongTables:
    """A policy's throughput by what is wrong with its table, over the right table's."""

    scenario: Scenario
    policy: str
    over_right: Mapping[str, Estimate]


def study_wrong_tables(
    replay: ScenarioReplay, wrong: Mapping[str, CostTable], policy: str
) -> WrongTables:
    """One policy with every wrong table; the replay's costs are charged."""

    def speed(table: CostTable) -> Floats:
        return tokens_per_s(
            replay.sums(table_policies(table, replay.arrays.depth)[policy])
        )

    right = speed(replay.table)
    estimate = replay.bootstrap.estimate
    over_right = {name: estimate(speed(table) / right) for name, table in wrong.items()}
    return WrongTables(replay.scenario, policy, over_right)


def wrong_tables(
    replay: ScenarioReplay, other: CostTable | None
) -> dict[str, CostTable]:
    """The replay's table, wrong in three ways; two where there is no other table."""
    tables = start_up_dummies(replay.table)
    if other:
        context = float(replay.arrays.context.mean())
        name = f"shape of {other.key.model} on {other.key.where}"
        tables[name] = reshaped(replay.table, other, replay.scenario.batch, context)
    return tables


def start_up_dummies(table: CostTable) -> dict[str, CostTable]:
    """What an engine measures that profiles itself with dummy tokens when it starts."""
    top_k = table.cost.shape.top_k
    alike = f"start-up dummy: all tokens activate the same {top_k}"
    none = "start-up dummy: no routed experts"
    return {alike: _with_union(table, top_k), none: _with_union(table, 0)}


def _with_union(table: CostTable, experts: int) -> CostTable:
    """The table if every forward activated so many experts."""
    curve = ActivationCurve("another", True, (float(experts),))
    return replace(table, activation=curve).read_anew()


def reshaped(
    table: CostTable, other: CostTable, batch: int, context: float
) -> CostTable:
    """The table with another's fit, scaled to the same plain decoding there."""
    fit = replace(other.fit, domain=table.fit.domain)
    lent = replace(table, model=other.model, activation=other.activation, fit=fit)
    ours, theirs = (
        each.step_cost_us(batch, context, "clamp")[batch]
        for each in (table, lent.read_anew())
    )
    scale = float(ours / theirs)
    non_moe = (replace(t, us_per_unit=scale * t.us_per_unit) for t in fit.non_moe)
    scaled = replace(fit, layer_scale=scale * fit.layer_scale, non_moe=tuple(non_moe))
    return replace(lent, fit=scaled).read_anew()


def shipped_table(apart_from: str) -> CostTable | None:
    """The first measured table that comes with the package, of another device."""
    shipped = (found.table for found in tables_below(data_root() / "cost_tables"))
    others = (t for t in shipped if t and t.origin != COMPOSED)
    return next((t for t in others if t.key.gpu != apart_from), None)

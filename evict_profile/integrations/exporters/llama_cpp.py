"""llama-server's flags for the draft's length: or that speculation should stay off.

llama.cpp drafts chains for one request after another, so batch 1 is priced. Without an
acceptance only the costs of batches are written, which PR 17034 reads. With a trace the
rules that llama.cpp has are replayed: a token's own probability may end a chain.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.advice.acceptance import AcceptedLengths
from evict_profile.advice.advise import WORTHWHILE, Advisor
from evict_profile.advice.chains import (
    DEFAULT_MOST,
    ChainReplay,
    ChainRule,
    batch_costs,
)
from evict_profile.advice.drafting import DraftCost
from evict_profile.errors import ConfigError
from evict_profile.integrations.exporters.export import (
    Export,
    ExportOptions,
    say,
    staircases_at,
)
from evict_profile.replay.wrong_tables import all_alike
from evict_profile.stats import Estimate
from evict_profile.table import CostTable
from evict_profile.traces import load_traces

SERVER = "llama-server -m MODEL"
SHOWN_COSTS = 16


@dataclass(frozen=True)
class Flags:
    """What to start llama-server with: `n_max` 0 leaves speculation off."""

    n_max: int
    p_min: float
    speed: Estimate

    @property
    def command(self) -> str:
        """The command line."""
        if not self.n_max:
            return f"{SERVER}   # leave speculation off"
        p_min = f" --spec-draft-p-min {self.p_min:g}" if self.p_min else ""
        return f"{SERVER} --spec-type TYPE --spec-draft-n-max {self.n_max}{p_min}"


def llama_cpp(table: CostTable, options: ExportOptions) -> Export:
    """Flags of llama-server, their gain, and the costs of batches.

    Raises:
        ConfigError: an acceptance of trees.
        TableError: no price of batch 1 at the context.
    """
    context = staircases_at(table, options.context)[0].context
    verify_us = table.price(1, context).step_cost_us
    costs = batch_costs(verify_us)[:SHOWN_COSTS]
    told = ",".join(f"{cost:g}" for cost in costs)
    notes = (
        []
        if table.key.engine == "llama_cpp"
        else [say("engine", key=table.key, system="llama.cpp")]
    )
    notes.append(say("llama costs", costs=told))
    fields: dict[str, object] = {"context": context, "batch_costs": costs}
    if options.lengths is None:
        return Export(fields, (*notes, say("llama without")))
    drafting = DraftCost(table, options.level_ms)
    advisor = Advisor(table, options.lengths, drafting, context, DEFAULT_MOST)
    flags, rules = _by_length(advisor), {}
    if options.trace is not None:
        true_us = np.asarray(verify_us)
        replay = ChainReplay(
            load_traces(options.trace),
            true_us,
            lambda drafts: drafting.us(1, drafts, context),
            all_alike(table)(true_us, 1, context),
        )
        rules = {
            name: (rule, replay.speed(rule)) for name, rule in replay.rules().items()
        }
        flags = _by_rule(*rules["best n-max with p-min"])
        for name, (rule, speed) in rules.items():
            notes.append(say("llama rule", name=name, flags=_spelt(rule), speed=speed))
    elif default := advisor.at(1).default:
        notes.append(say("llama default", speed=default.speed))
    notes.append(say("llama gain", speed=flags.speed, source=options.lengths.source))
    notes.append(say("schedule draft", drafting=drafting))
    notes.extend(_check(options.lengths, flags))
    fields |= {
        "n_max": flags.n_max,
        "p_min": flags.p_min,
        "speed": _numbers(flags.speed),
    }
    fields["rules"] = {
        name: {"flags": _spelt(rule), "speed": _numbers(speed)}
        for name, (rule, speed) in rules.items()
    }
    return Export(fields, tuple(notes), flags.command)


def _by_length(advisor: Advisor) -> Flags:
    if advisor.lengths.kind != "chain":
        raise ConfigError(
            "llama.cpp verifies chains, and this acceptance is of trees; give "
            "--acceptance, --lengths, --rate or --trace"
        )
    best = advisor.at(1).best
    return Flags(best.levels, 0.0, best.speed)


def _by_rule(rule: ChainRule, speed: Estimate) -> Flags:
    """The tuned flags, where they pay on prompts that they were not tuned on."""
    if not rule.n_max or speed.value <= WORTHWHILE:
        return Flags(0, 0.0, Estimate(1.0, 1.0, 1.0))
    return Flags(rule.n_max, rule.p_min, speed)


def _spelt(rule: ChainRule) -> str:
    if not rule.n_max:
        return "off"
    p_min = f" p-min {rule.p_min:g}" if rule.p_min else ""
    return f"n-max {rule.n_max}{p_min}" + " by the costs above" * bool(rule.costs)


def _check(lengths: AcceptedLengths, flags: Flags) -> list[str]:
    """The line with which a user sees the prediction on the own server."""
    n_max = flags.n_max or min(DEFAULT_MOST, int(lengths.levels[-1]))
    if lengths.levels[: n_max + 1].tolist() != list(range(n_max + 1)):
        return []
    rates = np.diff(lengths.committed[: n_max + 1])
    told = ",".join(f"{rate:.3g}" for rate in rates)
    return [say("llama check", server=SERVER, n_max=n_max, rates=told)]


def _numbers(speed: Estimate) -> dict[str, float]:
    return {"value": speed.value, "low": speed.low, "high": speed.high}

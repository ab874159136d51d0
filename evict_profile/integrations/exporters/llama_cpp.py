"""llama-server's flags for the draft's length: or that speculation should stay off.

llama.cpp drafts chains for one request after another, so batch 1 is priced. Without an
acceptance only the costs of batches are written, which PR 17034 reads. With a trace the
rules that llama.cpp has are replayed: a token's own probability may end a chain.
"""

from collections.abc import Iterator

import numpy as np

from evict_profile.advice.acceptance import AcceptedLengths
from evict_profile.advice.advise import WORTHWHILE, Advisor
from evict_profile.advice.chains import (
    DEFAULT_MOST,
    ChainReplay,
    ChainRule,
    batch_costs,
)
from evict_profile.advice.drafting import DraftCost, new_graph_us
from evict_profile.errors import TraceError
from evict_profile.integrations.exporters.export import (
    Export,
    ExportOptions,
    staircases_at,
)
from evict_profile.records import to_mapping
from evict_profile.replay.wrong_tables import all_alike
from evict_profile.stats import Estimate
from evict_profile.table import CostTable
from evict_profile.traces import Trace, load_traces

SERVER = "llama-server -m MODEL"
SHOWN_COSTS = 16


def llama_cpp(table: CostTable, options: ExportOptions) -> Export:
    """Flags of llama-server, their gain, and the costs of batches.

    Raises:
        TableError: no price of batch 1 at the context.
    """
    context = staircases_at(table, options.context)[0].context
    costs = batch_costs(table.price(1, context).step_cost_us)[:SHOWN_COSTS]
    fields: dict[str, object] = {"context": context, "batch_costs": costs}
    notes = [
        "For builds with llama.cpp PR 17034: "
        f"GGML_BATCH_COSTS={','.join(f'{cost:g}' for cost in costs)} (its rule drafts "
        "until a path's probability is below the average cost of a token, where the "
        "next token costs a marginal one)."
    ]
    if options.lengths is None:
        without = (
            "No acceptance was given, so no flags: give llama-server's 'acc per pos' "
            "as --acceptance, or a --trace."
        )
        return Export(fields, (*notes, without))
    draft = CostTable.load(options.draft_table) if options.draft_table else None
    drafting = DraftCost(table, options.level_ms, draft)
    advisor = Advisor(table, options.lengths, drafting, context, DEFAULT_MOST)
    if options.trace is None:
        best, default = advisor.at(1).best, advisor.at(1).default
        rule, speed = ChainRule(best.levels), best.speed
        rules = (
            {"default": (ChainRule(default.levels), default.speed)} if default else {}
        )
    else:
        rules = _replayed(advisor, load_traces(options.trace))
        rule, speed = rules["best n-max with p-min"]
        if not rule.n_max or speed.value <= WORTHWHILE:
            rule, speed = ChainRule(0), Estimate(1.0, 1.0, 1.0)
    notes += [
        *(
            f"{name} ({_flags(each)}): {gain} of plain decoding."
            for name, (each, gain) in rules.items()
        ),
        f"Advised: {speed} of plain decoding, by {options.lengths.source}.",
        f"Drafting: {drafting}.",
        *_check(options.lengths, rule.n_max),
    ]
    fields |= {"n_max": rule.n_max, "p_min": rule.p_min, "speed": to_mapping(speed)}
    fields["rules"] = {
        name: {"flags": _flags(each), "speed": to_mapping(gain)}
        for name, (each, gain) in rules.items()
    }
    return Export(fields, tuple(notes), _command(rule))


def _replayed(advisor: Advisor, trace: Trace) -> dict[str, tuple[ChainRule, Estimate]]:
    """Each rule of llama.cpp, tuned and scored on a trace at the advisor's prices.

    Raises:
        TraceError: one prompt alone.
    """
    if len({(reply.workload, reply.prompt) for reply in trace.replies}) < 2:
        raise TraceError(
            "the trace holds one prompt, and rules are scored on other prompts than "
            "they are tuned on; record more"
        )
    table, context = advisor.table, advisor.context
    verify_us = np.asarray(table.price(1, context).step_cost_us)
    replay = ChainReplay(
        trace,
        verify_us,
        lambda drafts: advisor.drafting.us(1, drafts, context),
        all_alike(table)(verify_us, 1, context),
        new_graph_us(table),
    )
    return {name: (rule, replay.speed(rule)) for name, rule in replay.rules().items()}


def _command(rule: ChainRule) -> str:
    if not rule.n_max:
        return f"{SERVER}   # leave speculation off"
    p_min = f" --spec-draft-p-min {rule.p_min:g}" if rule.p_min else ""
    return f"{SERVER} --spec-type TYPE --spec-draft-n-max {rule.n_max}{p_min}"


def _flags(rule: ChainRule) -> str:
    if not rule.n_max:
        return "off"
    p_min = f" p-min {rule.p_min:g}" if rule.p_min else ""
    return f"n-max {rule.n_max}{p_min}" + " by the costs above" * bool(rule.costs)


def _check(lengths: AcceptedLengths, advised: int) -> Iterator[str]:
    """The line with which a user sees the prediction on the own server."""
    n_max = advised or min(DEFAULT_MOST, int(lengths.levels[-1]))
    rates = np.diff(lengths.committed[: n_max + 1])
    falls = (np.diff(rates, prepend=1.0, append=0.0) <= 0.0).all()
    if falls and lengths.levels[: n_max + 1].tolist() == list(range(n_max + 1)):
        yield (
            "To see it on your server, accepted as given whatever is drafted: "
            f"{SERVER} --spec-type TYPE --spec-draft-n-max {n_max} --spec-draft-p-min "
            f"0 --spec-synth-rates {','.join(f'{rate:.3g}' for rate in rates)}"
        )

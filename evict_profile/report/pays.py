"""The sentence that decides: how many tokens a step must commit for drafts to pay."""

import shlex

from evict_profile.advice.steps import OfEstimate
from evict_profile.report.numbers import spread
from evict_profile.served.step import ServedStep
from evict_profile.stats import Estimate
from evict_profile.table import CostTable

DRAFTS = 3
"""K of the sentence, or the most that the table covers."""


def pays(table: CostTable) -> str:
    """ "Drafting K = 3 pays at batch 1 where a step commits more than 1.94 ..."."""
    served, context = ServedStep.of(table), min(table.axes.context)
    first, *others = sorted(table.axes.batch)
    widths = [n for n in table.axes.width if served.covers(first, n, context)]
    drafts = min(DRAFTS, max(widths) - 1)
    if not drafts:
        return "No step verifies more than one token of a request, so none can draft."
    last = [b for b in others if served.covers(b, drafts + 1, context)][-1:]
    at_last = [f"; at batch {b}, more than {_ratio(served, b, drafts)}" for b in last]
    return (
        f"Drafting K = {drafts} pays at batch {first} where a step commits more than "
        f"{_ratio(served, first, drafts)} tokens, its own included{''.join(at_last)}."
        f"{_limits(served)}"
    )


def how_to_decide(table: CostTable) -> str:
    key = table.key
    names = {"--model": key.model, "--gpu": key.gpu, "--engine": key.engine}
    words = [word for name in names.items() for word in name]
    return f"evict-profile advise {shlex.join(words)} --accept 3:LENGTH"


def _ratio(served: ServedStep, batch: int, drafts: int) -> str:
    context = min(served.table.axes.context)
    if served.table.is_estimated:
        steps = OfEstimate(served.table, context)
        return spread(steps.ratio(batch, drafts + 1, drafts).value)
    given = served.ratio(batch, drafts + 1, drafts, context)
    # More tokens take no less time, so no bound of a break-even is below 1.
    ends = (given.value, given.low, given.high)
    return spread(Estimate(*(max(end, 1.0) for end in ends)))


def _limits(served: ServedStep) -> str:
    if served.table.is_estimated:
        return " Estimated from kernels and from steps of other servers, not measured."
    if served.assumes_drafting:
        return " The time of drafting is assumed, not measured."
    return ""

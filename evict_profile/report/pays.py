"""The sentence that decides: how many tokens a step must commit for drafts to pay."""

import shlex

from evict_profile.advice.answer import PUBLIC_K
from evict_profile.advice.steps import OfEstimate
from evict_profile.io import as_json as json_of
from evict_profile.records import to_mapping
from evict_profile.report.console import Rows, as_text, wrapped
from evict_profile.report.numbers import spread
from evict_profile.served.growth import unserved
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


def break_evens(table: CostTable | None) -> Rows:
    """Committed tokens at which K drafts equal plain decoding, by batch."""
    rows = [("any server", *(spread(unserved(k + 1).value) for k in PUBLIC_K))]
    if table:
        served, batches = ServedStep.of(table), table.axes.batch
        own = [(str(b), *(_ratio(served, b, k) for k in PUBLIC_K)) for b in batches]
        rows = own + rows * table.is_estimated
    return Rows(("batch", *(f"K={k}" for k in PUBLIC_K)), rows)


def unaccepted(table: CostTable | None, reason: str, preface: str, json: bool) -> str:
    """The answer where no accepted length is given: break-evens."""
    said = pays(table) if table else "Break-evens are of other servers, at any batch."
    rows, answer = break_evens(table), f"{preface}{said}"
    if json:
        key = to_mapping(table.key) if table else {}
        found = {"answer": answer, "reason": reason, "table": key}
        return json_of({**found, "break_evens": rows.records})
    why = [f"No table answers: {reason}."] * bool(reason)
    hint = (
        "Give your accepted length, as --accept 3:2.4, to know whether drafting pays."
    )
    return "\n".join((*map(wrapped, (answer, *why)), as_text(rows), hint))


def how_to_decide(table: CostTable) -> str:
    key = table.key
    names = {"--model": key.model, "--gpu": key.gpu, "--engine": key.engine}
    sizes = {"--tp": str(key.tp), "--dtype": key.dtype}
    words = [word for name in (names | sizes).items() for word in name]
    return f"evict-profile advise {shlex.join(words)} --accept 3:LENGTH"


def _ratio(served: ServedStep, batch: int, drafts: int) -> str:
    covered = served.covers(batch, drafts + 1, min(served.table.axes.context))
    return spread(break_even(served, batch, drafts)) if covered else "-"


def break_even(served: ServedStep, batch: int, drafts: int) -> Estimate:
    """Committed tokens at which a step equals plain decoding, at the least context."""
    context = min(served.table.axes.context)
    if served.table.is_estimated and served.assumes_drafting:
        steps = OfEstimate(served.table, context)
        return steps.ratio(batch, drafts + 1, drafts).value
    given = served.ratio(batch, drafts + 1, drafts, context)
    # More tokens take no less time, so no bound of a break-even is below 1.
    ends = (given.value, given.low, given.high)
    return Estimate(*(max(end, 1.0) for end in ends))


def _limits(served: ServedStep) -> str:
    if served.table.is_estimated:
        return (
            " Estimated from kernels and from steps of other servers, not measured; "
            "the error is that of other servers."
        )
    if served.assumes_drafting:
        return " The time of drafting is assumed, not measured."
    return ""

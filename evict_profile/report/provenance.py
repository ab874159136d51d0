"""Section 10: what was measured, on what, when, and the fitted numbers themselves."""

from collections import Counter
from datetime import datetime

from evict_profile.cells import OK, cell_of
from evict_profile.report.html import Markup, folded, paragraph, table, tag
from evict_profile.report.prose import counted
from evict_profile.report.view import View, unit_for
from evict_profile.table import TermCost

MOST_TOLD = 200


def provenance(view: View) -> Markup:
    """Everything that a sceptic asks for."""
    return tag(
        "div",
        paragraph(when(view), scaling(view), scaling_measured(view)),
        paragraph(clock(view)),
        paragraph(shape(view), dtype(view)),
        paragraph(growth(view)),
        _skipped(view),
        tag("h3", "Fitted terms"),
        _terms(view),
        tag("h3", "Identity"),
        tag("div", _identity(view), kind="words"),
    )


def when(view: View) -> str:
    """What was measured, when and for how long."""
    made = view.table.provenance
    started, finished = (
        datetime.fromisoformat(text) for text in (made.started, made.finished)
    )
    rounds = view.timed["round"].nunique()
    return (
        f"{counted(made.samples, 'forward')} of {counted(made.cells, 'cell')} were "
        f"timed in {made.measured_minutes:.1f} minutes, in {counted(rounds, 'round')} "
        f"of random order, between {started:%d %B %Y %H:%M} and "
        f"{finished:%d %B %Y %H:%M} UTC, with sweep '{made.sweep.name}' and seed "
        f"{made.sweep.seed}."
    )


def scaling(view: View) -> str:
    """Which share of the model ran, and how the rest follows."""
    fit, model = view.table.fit, view.table.model
    if fit.measured_layers == model.moe_layers:
        return f"All {model.moe_layers} MoE layers ran; nothing is scaled up."
    return (
        f"Of {model.moe_layers} MoE layers, {fit.measured_layers} ran; a step takes "
        f"their latency times {fit.layer_scale:g}, plus the ends (embedding, dense "
        "layers, final norm and head), which were measured apart. That layers cost "
        "alike is an assumption."
    )


def clock(view: View) -> str:
    """What a latency is."""
    made = view.table.provenance
    if made.reference_us is None:
        return f"Clock: {made.clock}."
    return (
        f"Clock: {made.clock}. Each forward was timed between two runs of fixed "
        f"reference work, and its latency is the ratio of the two times the median "
        f"reference, {unit_for(made.reference_us).of(made.reference_us)}: what slows "
        "both alike drops out."
    )


def skipped(view: View) -> str:
    """How many cells were not measured."""
    kinds = view.table.provenance.skipped
    if not kinds:
        return "No cell was skipped."
    said = ", ".join(
        f"{counted(count, kind + ' cell')}" for kind, count in sorted(kinds.items())
    )
    return f"Not measured: {said}."


def terms_unit(feature: str) -> str:
    """What one unit of a feature is."""
    return {
        "one": "per forward",
        "union": "per expert woken",
        "tokens": "per token",
        "crowd": "per expert and row",
        "batch": "per request",
        "cache": "per cached token",
        "scores": "per token and cached token",
    }.get(feature, "per unit")


def term_range(feature: str, low: float, high: float | None) -> str:
    """Over which values a term's ramp rises."""
    if low == 0.0 and high is None:
        return "always"
    name = "rows per expert" if feature == "crowd" else feature
    upper = "up" if high is None else f"to {high:g}"
    return f"{name} from {low:g} {upper}"


def scaling_measured(view: View) -> str:
    """How well half of the layers predict all that ran, where that was tested."""
    test = view.table.provenance.scaling_test
    if not test:
        return ""
    return (
        f"As a check, {test['small_layers']} of the {test['large_layers']} layers "
        f"measured, scaled up, miss all of them by {test['error']:+.1%} (95 % "
        f"interval {test['error_low']:+.1%} to {test['error_high']:+.1%})."
    )


def shape(view: View) -> str:
    """The model as far as cost goes."""
    model = view.table.model
    megabytes = model.bytes_per_expert / 1e6
    return (
        f"The model's shape: {model.num_layers} layers, hidden size "
        f"{model.hidden_size:,}, {model.moe.num_experts} experts a layer of which a "
        f"token runs {model.moe.top_k}, {megabytes:.1f} MB an expert in "
        f"{model.dtype}. Source: {model.source}."
    )


def dtype(view: View) -> str:
    """Why the sweep ran in its dtype, where the runner chose."""
    reason = view.table.provenance.dtype_reason
    return f"Measured in {view.table.model.dtype}: {reason}." if reason else ""


def growth(view: View) -> str:
    """Where the union growth comes from, and what else is known of a drafter."""
    table, growth = view.table, view.table.union_growth
    workload = growth.workload.removeprefix("none: ")
    kind = "a guess, not a measurement" if growth.is_guess else "measured"
    known = {"acceptance": table.acceptance, "drafting": table.drafting}
    told = [
        f"{name} as measured on {each.workload}" for name, each in known.items() if each
    ]
    return " ".join(
        (
            f"The growth of the union with the tokens is {kind}: {workload}.",
            *(f"The table also holds {fact}." for fact in told),
        )
    )


def _skipped(view: View) -> Markup:
    rows = view.fitted.frame
    missing = rows[rows["status"] != OK]
    if missing.empty:
        return paragraph(skipped(view))
    told = Counter(
        (str(row.status), str(cell_of(row)), str(row.reason))
        for row in missing.itertuples()
    )
    listed = table(("status", "cell", "reason"), sorted(told)[:MOST_TOLD])
    return tag(
        "div",
        paragraph(skipped(view)),
        folded("Cells not measured, and why", tag("div", listed, kind="words")),
    )


def _ends_of(view: View) -> str:
    """Whole forwards have their ends in them."""
    apart = any(term.us_per_unit for term in view.table.fit.ends)
    return " and of the ends" if apart else ", ends included"


def _terms(view: View) -> Markup:
    fit = view.table.fit
    rows = [("layers", t) for t in fit.layers] + [("ends", t) for t in fit.ends]
    caption = (
        f"Microseconds of {view.layers}{_ends_of(view)}, with 90 % bootstrap "
        "intervals. A cost is the sum of its terms, none below zero. Terms that move "
        "together share their cost, so one term's interval can be wide where the "
        "sum's is narrow. Terms at zero are folded away."
    )
    head = ("term", "us", "90 % interval", "unit")
    bought = [_term(part, term) for part, term in rows if term.us_per_unit > 0.0]
    zero = [_term(part, term) for part, term in rows if term.us_per_unit <= 0.0]
    rest = folded(counted(len(zero), "term") + " at zero", table(head, zero))
    return tag("div", paragraph(caption), table(head, bought), rest if zero else "")


def _term(part: str, term: TermCost) -> tuple[str, ...]:
    low, high = term.us_per_unit_interval
    return (
        f"{part}: {term.feature}, {term_range(term.feature, term.low, term.high)}",
        per_unit(term.us_per_unit),
        f"{per_unit(low)} to {per_unit(high)}",
        terms_unit(term.feature),
    )


def per_unit(us: float) -> str:
    """A coefficient in microseconds, three significant digits."""
    return f"{us:,.0f}" if us >= 100 else f"{us:.3g}"


def _identity(view: View) -> Markup:
    made = view.table.provenance
    own = {
        "cost table": f"{view.table.schema}, version {view.table.version}",
        "evict-profile": made.evict_profile,
        "plan sha256": made.plan_sha256,
        "samples sha256": made.samples_sha256,
        "copy bandwidth": f"{made.bandwidth_gbps:.1f} GB/s, measured",
        "captured graphs": ", ".join(map(str, view.table.axes.ladder)) or "none",
    }
    facts = {k.replace("_", " "): str(v) for k, v in made.fingerprint.items()}
    rows = {**own, **facts}
    return table(
        ("fact", "value"), [(k, tag("code", v or "none")) for k, v in rows.items()]
    )

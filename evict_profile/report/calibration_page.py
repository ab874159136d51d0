"""The calibration as one self-contained HTML file, in the look of a table's report."""

from evict_profile.calibrate.held_out import BEST, WIDTHS, HeldOutErrors
from evict_profile.calibrate.study import Study
from evict_profile.report import calibration_prose as prose
from evict_profile.report.figures import calibration as figures
from evict_profile.report.html import Markup, figure, join, paragraph, table, tag
from evict_profile.report.page import document
from evict_profile.table import CostTable

HELD_OUT = "On prompts held out; 95 % bootstrap intervals over prompts in brackets."


def page(found: Study, made: CostTable) -> str:
    """The whole document."""
    title = f"What {found.trace.about.model} accepts, and what it wakes"
    subtitle = f"{found.name}. In cost table {made.version} of {made.key.model}."
    top = tag(
        "header",
        tag("h1", title, id="headline"),
        tag("p", subtitle, kind="quiet"),
        tag("p", prose.calibration(found), kind="lead"),
    )
    sections = (
        ("acceptance", "Does a score say what will be accepted?", _acceptance(found)),
        ("continuation", "What another level brings", _continuation(found)),
        ("growth", "How many experts a tree wakes", _growth(found, made)),
        ("times", "Drafting, and whether the prices hold", _times(found)),
    )
    body = [tag("section", tag("h2", h), text, id=name) for name, h, text in sections]
    return document(title, top, join(body))


def _acceptance(found: Study) -> Markup:
    caption = (
        "Each dot is a tenth of the acceptances that a depth promises, if it has 20 "
        "nodes. Below the line a score promises too much. Left: the drafter's "
        f"path probability. Right: {found.calibrated.chosen}, fitted without the "
        "prompts that are shown."
    )
    return join(
        [
            figure(figures.reliability(found), caption),
            _errors(found.calibrated.errors),
            tag("p", HELD_OUT, kind="quiet"),
            paragraph(prose.restriction(found)),
            _tokens(found.calibrated.errors),
            *_workloads(found),
        ]
    )


def _errors(errors: dict[str, HeldOutErrors]) -> Markup:
    head = ("calibrator", "ECE", f"ECE, best {BEST}", "Brier", "log loss", "Brier over")
    rows = [
        (name, e.ece, e.best_ece, e.brier, e.log_loss, f"{e.excess_brier.value:+.5f}")
        for name, e in errors.items()
    ]
    return table(head, rows)


def _tokens(errors: dict[str, HeldOutErrors]) -> Markup:
    head = ("tokens a step, best nodes by", *(f"width {width}" for width in WIDTHS))
    told = {name: e.tokens for name, e in errors.items() if e.tokens}
    rows = [(name, *tokens.values()) for name, tokens in told.items()]
    return table(head, rows)


def _workloads(found: Study) -> list[Markup]:
    if len(found.by_workload) < 2:
        return []
    head = ("workload", "ECE raw", "ECE calibrated", "Brier raw", "Brier calibrated")
    rows = []
    for workload, errors in found.by_workload.items():
        raw, own = errors["raw"], errors[found.calibrated.chosen]
        rows.append((workload, raw.ece, own.ece, raw.brier, own.brier))
    said = "One calibration serves all workloads of the table; on each it does this."
    return [paragraph(said), table(head, rows)]


def _continuation(found: Study) -> Markup:
    head = ("rank of the child", *range(len(found.continuation)))
    shares = (f"{share:.3f}" for share in found.continuation)
    return join(
        [
            paragraph(prose.continuation(found)),
            table(head, [("accepted", *shares)]),
        ]
    )


def _growth(found: Study, made: CostTable) -> Markup:
    if found.growths is None:
        return paragraph(prose.NO_ROUTES)
    caption = (
        "Mean over steps and layers, as nodes are kept best first, roots before all. "
        "Shaded: the 10th to the 90th percentile of prompts (left) and of groups of "
        "requests drawn at random (right). Dotted: uniform routing."
    )
    return join(
        [
            paragraph(prose.growth(found.growths, made.model)),
            figure(figures.growth(found, made.model), caption),
        ]
    )


def _times(found: Study) -> Markup:
    drafting = prose.drafting(found.drafting) if found.drafting else prose.NO_CLOCKS
    prices = f"{found.prices}." if found.prices else prose.NO_CHECK
    return join([paragraph(drafting), paragraph(prices[:1].upper() + prices[1:])])

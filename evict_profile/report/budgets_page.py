"""The page of a front: what to run first, then what says so."""

from collections.abc import Iterator

from evict_profile.budgets.compare import Comparison, OracleNeed
from evict_profile.budgets.front import Front, Point
from evict_profile.budgets.study import Part, Study
from evict_profile.replay.verdict import percent
from evict_profile.report.budgets_console import HEAD, by_rule, cell, check, fields
from evict_profile.report.figures.budgets import by_budget, speed_by_divergence
from evict_profile.report.html import (
    Markup,
    figure,
    folded,
    join,
    paragraph,
    table,
    tag,
)
from evict_profile.report.page import document
from evict_profile.stats import RESAMPLES

TITLE = "What does an expert budget buy, and what does it cost?"
HEADINGS = {
    "front": "Speed against quality",
    "rules": "What each rule is worth",
    "prices": "What was foretold, and what ran",
    "workloads": "Workload by workload",
    "provenance": "Where the numbers come from",
}
"""Anchor and heading of each section below the advice."""


def page(study: Study) -> str:
    """The whole document."""
    key = study.key
    contents = {
        "front": _front(study.whole.front, "whole"),
        "rules": _rules(study.whole),
        "prices": _prices(study.whole.front),
        "workloads": join(_workloads(study)),
        "provenance": _provenance(study),
    }
    told = {name: text for name, text in contents.items() if text}
    links = (tag("a", HEADINGS[name], href=f"#{name}") for name in told)
    top = tag(
        "header",
        tag("h1", TITLE, id="headline"),
        tag("p", f"{key['model']} on {key['gpu']}, {key['engine']}", kind="quiet"),
        tag("p", study.says, kind="lead"),
        tag("p", study.whole.advice.asking, kind="quiet"),
        tag("nav", join(links)),
    )
    body = (
        tag("section", tag("h2", HEADINGS[name]), content, id=name)
        for name, content in told.items()
    )
    return document(TITLE, top, join(body))


def _front(front: Front, name: str) -> Markup:
    speeds = (
        f"{front.prompts} prompts. Up is faster, left is closer to the unbudgeted "
        "target; a point at the left edge is there or further left. Along a line the "
        "budget shrinks from left to right. Crosses are 95 % intervals. The oracle "
        "knows what will be accepted and cannot be deployed."
    )
    budgets = (
        "The level line is the target without a budget; lines upright are 95 % "
        "intervals. Given text is the same for every setting."
    )
    return join(
        [
            figure(speed_by_divergence(front, f"{name}-front"), speeds),
            figure(by_budget(front, f"{name}-budgets"), budgets),
            folded("all numbers", _numbers(front), _decoded(front)),
            tag("p", f"{check(front.none)}.", kind="quiet"),
        ]
    )


def _numbers(front: Front) -> Markup:
    return table(("setting", *HEAD[1:]), map(fields, by_rule(front)))


def _decoded(front: Front) -> Markup:
    head = ("setting", "KL, decoded", "agreement, decoded", "excess loss, decoded",
            "excess loss over none, given")  # fmt: skip
    rows = [
        (
            point.setting.name,
            cell(point.decoded.kl, ".5f"),
            cell(point.decoded.agreement, ".2%"),
            cell(point.decoded.excess_loss, "+.4f"),
            cell(point.over_none, "+.4f"),
        )
        for point in by_rule(front)
    ]
    return table(head, rows)


def _rules(part: Part) -> Markup:
    parts = [paragraph(saying) for saying in part.sayings]
    if part.comparisons:
        parts.append(folded("all comparisons", _compared(part.comparisons)))
    if part.oracle:
        parts.append(folded("experts that hindsight needs", _needs(part.oracle)))
    return join(parts)


def _compared(found: tuple[Comparison, ...]) -> Markup:
    head = ("rule", "experts", "KL, given", "speed", "accept length")
    rows = [
        (c.name, c.budget, percent(c.kl), percent(c.speed), percent(c.accept))
        for c in found
    ]
    return table(head, rows)


def _needs(needs: tuple[OracleNeed, ...]) -> Markup:
    head = ("mass with", "the oracle needs", "or fewer still")
    rows = [
        (f"{n.budget} experts", percent(n.share), "yes" if n.at_most else "no")
        for n in needs
    ]
    return table(head, rows)


def _prices(front: Front) -> Markup:
    said = (
        "Foretold is the table's price of the steps that the unbudgeted target ran, as "
        "if none woke more experts than the budget: C(n, min(U, B)). Beside it is the "
        "price of what ran. Routing within the budget is measured, comes on top, and "
        "is part of the step."
    )
    head = ("setting", "foretold, us", "ran, us", "foretold over ran", "experts",
            "routing, us", "whole step, us", "x none")  # fmt: skip
    return join([paragraph(said), table(head, map(_price, by_rule(front)))])


def _price(point: Point) -> tuple[str, ...]:
    foretold, ran = point.predicted_us, point.verify_us
    return (
        point.setting.name,
        cell(foretold, ",.0f"),
        cell(ran, ",.0f"),
        f"{foretold.value / ran.value:.3f}",
        cell(point.union, ".1f"),
        f"{point.setting.routing_us:,.0f}",
        cell(point.step_us, ",.0f"),
        cell(point.step_ratio, ".3f"),
    )


def _workloads(study: Study) -> Iterator[Markup]:
    """Nothing where there is one alone: the sections above are about it."""
    for number, part in enumerate(study.parts[1:]):
        front = part.front
        yield tag("h3", front.workload)
        yield paragraph(part.advice.says)
        drawn = _front(front, f"part{number}")
        yield folded(f"the front on {front.workload}", drawn, _rules(part))


def _provenance(study: Study) -> Markup:
    about = study.about
    low, high = (100.0 * (share - 1.0) for share in study.price_spread)
    rows = [
        ("recording", study.recording),
        ("drafts", f"{about.depth} levels, {about.fan} nodes each, {about.nodes} "
         "verified"),
        ("recorded on", f"{about.device}, {about.engine} {about.engine_version}"),
        ("cost table", f"{study.table}, sha256 {study.sha256[:12]}"),
        ("table's costs", f"90 % within {low:+.1f} to {high:+.1f} %, beside the "
         "intervals shown"),
    ]  # fmt: skip
    rows += [("note", mark) for mark in study.marks]
    said = (
        "Speeds are expected: the table's price of what ran, drafting, routing within "
        f"the budget and the rest of a step. Intervals are 95 %, from {RESAMPLES} "
        "resamples of prompts, the same for every setting. Under a budget another text "
        "is decoded than without one, and it may be easier or harder to draft: so "
        "look at time and tokens of a step apart."
    )
    words = tag("div", table(("what", "which"), rows), kind="words")
    return join([paragraph(said), words])

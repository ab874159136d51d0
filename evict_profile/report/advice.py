"""Advice on drafting: one screen, a Markdown table, or a JSON document."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evict_profile.advice.advise import CHANGE, Advisor, BatchAdvice, Plan, Way
from evict_profile.io import finite
from evict_profile.records import to_mapping
from evict_profile.report.numbers import spread
from evict_profile.report.tables import Rows, as_text

KINDS = {"chain": "chains", "tree": "trees, cut to their best nodes"}


@dataclass(frozen=True)
class Advice:
    """What an answer holds.

    Attributes:
        advisors: of chains, and after them of trees where a trace has them.
        batches: that are shown.
        plan: of chains, for all batches together.
        every: whether all ways of a batch are shown, or the best.
    """

    advisors: Sequence[Advisor]
    batches: Sequence[int]
    plan: Plan
    every: bool

    @cached_property
    def parts(self) -> list[tuple[Advisor, list[BatchAdvice]]]:
        """What each acceptance says of each batch."""
        return [(each, [each.at(b) for b in self.batches]) for each in self.advisors]

    def text(self) -> str:
        """One screen."""
        lines = [*self._facts()]
        for advisor, found in self.parts:
            rows = advice_rows(found, self.every)
            lines += ["", KINDS[advisor.lengths.kind], as_text(rows)]
        return "\n".join([*lines, *self.verdict(), *self.tree_flags()])

    def markdown(self) -> str:
        """For an issue or a pull request."""
        title, *facts = self._facts()
        lines = [f"**{title}**"]
        for _, found in self.parts:
            rows = advice_rows(found, self.every)
            cells = [rows.head, ["---"] * len(rows.head), *rows.cells]
            lines += ["", *(f"| {' | '.join(map(str, row))} |" for row in cells)]
        return "\n".join([*lines, "", *self.verdict(), "", *(f"- {f}" for f in facts)])

    def json(self, **more: object) -> str:
        """All numbers, and what else is given; an end that no interval has is null."""
        first, plan = self.advisors[0], self.plan
        parts = [
            {"kind": a.lengths.kind, "batches": to_mapping(found)}
            for a, found in self.parts
        ]
        content: dict[str, Any] = {
            "table": {"path": str(first.table.path), **to_mapping(first.table.key)},
            "facts": [*self._facts()],
            "parts": parts,
            "plan": {**to_mapping(plan), "advised": plan.advised},
            "verdict": [*self.verdict()],
            **more,
        }
        return json.dumps(finite(content), ensure_ascii=False, indent=1)

    def _facts(self) -> Iterator[str]:
        """What the advice rests on, a line each."""
        first = self.advisors[0]
        table, key = first.table, first.table.key
        yield (
            f"{key.model} on {key.where}, {key.dtype}, {key.engine} "
            f"{key.engine_version}, tp {key.tp}, context {first.context:g}, version "
            f"{table.version}"
        )
        yield f"acceptance: {first.lengths.source}"
        yield f"drafting: {first.drafting.workload}"
        if known := table.served_overheads:
            yield f"beside the forward: {known}"
        yield from (f"caveat: {caveat}" for caveat in table.caveats)

    def verdict(self) -> Iterator[str]:
        """One draft length or a schedule, and where nobody can say."""
        plan = self.plan
        over = ", ".join(f"{b} ({share:.0%})" for b, share in plan.traffic.items())
        over = f"at batch {over} of plain decoding's time"
        if not plan.advised:
            yield f"Advised: do not speculate; no draft gains more than 1 % {over}."
            return
        one = "" if len(plan.advised) > 1 else "Advised: "
        if plan.drafts:
            times = f"{plan.gain:.2f} times plain decoding"
            yield f"{one}K={plan.drafts} at every batch: {times} {over}."
            yield from self._near(plan)
        if not one:
            yield f"Advised: {_by_batch(plan)}"
        chains = self.parts[0][1]
        if loses := [each.batch for each in chains if plan.speed(each) < 1.0]:
            yield f"Drafting is slower than plain decoding at batch {_list(loses)}."
        if unsure := [each.batch for each in chains if not each.sure]:
            yield f"Intervals do not settle whether drafting pays at {_list(unsure)}."

    def _near(self, plan: Plan) -> Iterator[str]:
        """Lengths that gain as much as the one that is advised, and where it ends."""
        chains = self.parts[0][1]
        gains = {k: v for each in chains for k, v in each.speeds.items() if k}
        if len(chains) == 1 and (
            near := [
                k for k in gains if k != plan.drafts and gains[k] > 0.99 * plan.gain
            ]
        ):
            yield f"Within 1 % of it: {', '.join(f'K={k}' for k in near)}."
        if plan.drafts == max(gains):
            yield f"K={plan.drafts} is the longest that was given; more may gain more."

    def tree_flags(self) -> Iterator[str]:
        """SGLang's flags for trees, at batches where one is faster than every chain."""
        (_, chains), *rest = self.parts
        for _, trees in rest:
            for chain, tree in zip(chains, trees, strict=True):
                best = tree.best
                if best.levels and best.speed.value > chain.best.speed.value:
                    yield (
                        f"SGLang at batch {tree.batch}: --speculative-num-steps "
                        f"{best.levels} --speculative-num-draft-tokens {best.width}, "
                        "topk as traced"
                    )


def _by_batch(plan: Plan) -> str:
    ranges = (f"K={each.drafts} at {each.first}..{each.last}" for each in plan.schedule)
    return (
        f"By batch, {', '.join(ranges)}: {plan.schedule_gain:.2f} times. A schedule is "
        f"advised where it gains {CHANGE - 1.0:.0%} more, an assumption about what it "
        "costs an engine (with one vLLM fell to piecewise graphs and from 59.6 to 50.0 "
        "tokens a second: vLLM #49548)."
    )


def _list(batches: Sequence[int]) -> str:
    return ", ".join(map(str, batches))


def advice_rows(advice: Sequence[BatchAdvice], every: bool) -> Rows:
    """A row a batch, of the best way to draft; or of every way that drafts."""
    shown = [
        (each, way)
        for each in advice
        for way in (each.ways[1:] if every else (each.best,))
    ]
    served = every and any(way.served is not None for _, way in shown)
    return Rows.of(
        shown,
        {
            "batch": lambda row: row[0].batch,
            "draft": lambda row: row[1].name,
            "accepted": lambda row: f"{row[1].committed:.2f}",
            "break-even": lambda row: f"{row[1].ratio:.2f}",
            "speed-up (95 %)": lambda row: spread(row[1].speed),
            **({"served": lambda row: _served(row[1])} if served else {}),
        },
    )


def _served(way: Way) -> str:
    return "-" if way.served is None else f"{way.served:.2f}"

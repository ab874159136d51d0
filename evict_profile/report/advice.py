"""Advice on drafting: one screen, a Markdown table, or a JSON document."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from evict_profile.advice.acceptance import acceptance_of
from evict_profile.advice.advise import (
    CHANGE,
    Advisor,
    BatchAdvice,
    DraftPlan,
    plan,
    traffic_of,
)
from evict_profile.io import finite
from evict_profile.records import to_mapping
from evict_profile.report.console import Rows, as_text
from evict_profile.report.numbers import spread
from evict_profile.table import CostTable

KINDS = {"chain": "chains", "tree": "trees, cut to their best nodes"}


@dataclass(frozen=True)
class Advice:
    """Of chains, and after them of trees where a trace has them; the plan is of chains.

    Shown is the best way of each batch, or with `every` all ways.
    """

    advisors: Sequence[Advisor]
    batches: Sequence[int]
    plan: DraftPlan
    every: bool

    @cached_property
    def parts(self) -> list[tuple[Advisor, list[BatchAdvice]]]:
        """What each acceptance says of each batch."""
        return [(each, [each.at(b) for b in self.batches]) for each in self.advisors]

    def __str__(self) -> str:
        """One screen."""
        lines = [*self._facts()]
        for advisor, found in self.parts:
            rows = as_text(advice_rows(found, self.every))
            lines += ["", KINDS[advisor.lengths.kind], rows]
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

    def json(self) -> str:
        """All numbers; an end that no interval has is null."""
        table, plan = self.advisors[0].served.table, self.plan
        content = {
            "table": {"path": str(table.path), **to_mapping(table.key)},
            "facts": [*self._facts()],
            "parts": [
                {"kind": advisor.lengths.kind, "batches": to_mapping(found)}
                for advisor, found in self.parts
            ],
            "plan": {**to_mapping(plan), "advised": plan.advised},
            "verdict": [*self.verdict()],
        }
        return json.dumps(finite(content), ensure_ascii=False, indent=1)

    def _facts(self) -> Iterator[str]:
        """What the advice rests on, a line each."""
        first = self.advisors[0]
        served, table = first.served, first.served.table
        key = table.key
        yield (
            f"{key.model} on {key.where}, {key.dtype}, {key.engine} "
            f"{key.engine_version}, tp {key.tp}, context {first.context:g}, version "
            f"{table.version}"
        )
        yield f"acceptance: {first.lengths.source}"
        yield f"drafting: {served.drafting.workload}"
        if served.overheads:
            yield f"overheads: {served.overheads}"
        yield from (f"caveat: {caveat}" for caveat in served.caveats)

    def verdict(self) -> Iterator[str]:
        """One draft length or a schedule, and where nobody can say."""
        plan, chains = self.plan, self.parts[0][1]
        shares = ", ".join(f"{b} ({share:.0%})" for b, share in plan.traffic.items())
        alone = "".join(map(str, plan.traffic)) if len(plan.traffic) == 1 else ""
        over = f"at batch {alone or f'{shares} of plain decoding time'}"
        unsure = [str(each.batch) for each in chains if not each.sure]
        word = "Best guess" if len(unsure) == len(chains) else "Recommended"
        if not plan.advised:
            yield f"{word}: do not speculate; no draft gains more than 1 % {over}."
        else:
            yield from self._lengths(word, over)
        if unsure:
            yield (
                f"Intervals do not settle whether drafting pays at {', '.join(unsure)}."
            )

    def _lengths(self, word: str, over: str) -> Iterator[str]:
        plan, chains = self.plan, self.parts[0][1]
        one = len(plan.advised) == 1
        if plan.drafts:
            advised = f"{word}: " if one else ""
            speed = f"Predicted speed-up: {plan.gain:.2f}x {over}"
            yield f"{advised}K={plan.drafts} at every batch. {speed}."
            gains = {k: v for each in chains for k, v in each.speeds.items() if k}
            near = [k for k, v in gains.items() if v > 0.99 * plan.gain]
            if len(chains) == 1 and (others := [k for k in near if k != plan.drafts]):
                yield f"Within 1 % of it: {', '.join(f'K={k}' for k in others)}."
            if (longest := max(gains)) == plan.drafts:
                yield f"K={longest} is the longest that was given; more may gain more."
        if not one:
            ranges = (f"K={r.drafts} at {r.first}..{r.last}" for r in plan.schedule)
            yield (
                f"{word}: by batch, {', '.join(ranges)}. Predicted speed-up: "
                f"{plan.schedule_gain:.2f}x. A schedule is recommended only if it "
                f"gains {CHANGE - 1.0:.0%} more, an assumption about its cost in an "
                "engine (with a schedule, vLLM fell to piecewise graphs and from 59.6 "
                "to 50.0 tokens per second: vLLM #49548)."
            )
        loses = [str(each.batch) for each in chains if plan.speed(each) < 1.0]
        if loses:
            yield f"Drafting is slower than plain decoding at batch {', '.join(loses)}."

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


def advise(
    table: CostTable,
    accept: str,
    *,
    batch: Sequence[int] = (),
    traffic: str | None = None,
    context: int | None = None,
    draft_level_ms: float | None = None,
    reader: str = "",
) -> Advice:
    """Recommend draft lengths from acceptance alone.

    Args:
        accept: a rate, accepted lengths or a file, as `acceptance_of` reads them.
        batch: batch sizes of which to show every draft length; by default the best of
            each of the table's.
        traffic: shares of plain decoding's time by batch, as `traffic_of` reads them.
        context: tokens; by default the table's smallest.
        draft_level_ms: to draft one more token; by default the table's.
        reader: the engine that is to serve it.

    Raises:
        ConfigError: if acceptance or traffic cannot be read, or the table does not
            cover what is asked for.
    """
    shares = traffic_of(traffic) if traffic else {}
    advisors = [
        Advisor.of(table, lengths, context, draft_level_ms)
        for lengths in acceptance_of(accept)
    ]
    one = [1] if reader == "llama-cpp" else ()  # It decodes one request at a time.
    batches = tuple(dict.fromkeys(one or batch or shares or advisors[0].batches))
    shares = shares or dict.fromkeys(batches, 1.0 / len(batches))
    # TensorRT-LLM refuses a longer draft than the smallest batch has.
    planned = plan(advisors[0], shares, falling=reader == "trtllm")
    return Advice(advisors, batches, planned, bool(batch))


def advice_rows(advice: Sequence[BatchAdvice], every: bool) -> Rows:
    """A row a batch, of the best way to draft; or of every way that drafts."""
    shown = [
        (each.batch, way)
        for each in advice
        for way in (each.ways[1:] if every else (each.best,))
    ]
    head = ["batch", "draft", "accepted", "break-even", "speed-up (95 %)"]
    cells = [
        [batch, w.name, f"{w.committed:.2f}", f"{w.ratio:.2f}", spread(w.speed)]
        for batch, w in shown
    ]
    if every and any(way.served is not None for _, way in shown):
        head.append("served")
        for row, (_, way) in zip(cells, shown, strict=True):
            row.append("-" if way.served is None else f"{way.served:.2f}")
    return Rows(head, cells)

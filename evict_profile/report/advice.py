"""Advice on drafting: one screen, a Markdown table, or a JSON document."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from evict_profile.advice.acceptance import acceptance_of
from evict_profile.advice.advise import (
    CHANGE,
    Advisor,
    BatchAdvice,
    DraftOption,
    DraftPlan,
    plan,
    traffic_of,
)
from evict_profile.advice.answer import Answer
from evict_profile.advice.drafting import drafters
from evict_profile.integrations.exporters import ENGINES
from evict_profile.io import finite
from evict_profile.records import replace, to_mapping
from evict_profile.report.console import WIDEST, Rows, as_text, wrapped
from evict_profile.report.numbers import spread
from evict_profile.table import DATASHEET, MEASURED, SERVED, CostTable, ServedStep
from evict_profile.table.cost_table import Outside

KINDS = {"chain": "chains", "tree": "trees, cut to their best nodes"}


@dataclass(frozen=True)
class Advice:
    """Of chains, and after them of trees where a trace has them; the plan is of chains.

    Shown is the best way of each batch, or with `every` all ways. `asked` are the
    options that `evict-profile export` takes for the same advice.
    """

    advisors: Sequence[Advisor]
    batches: Sequence[int]
    plan: DraftPlan
    every: bool
    asked: Sequence[str] = ()

    @cached_property
    def parts(self) -> list[tuple[Advisor, list[BatchAdvice]]]:
        """What each acceptance says of each batch."""
        return [(each, [each.at(b) for b in self.batches]) for each in self.advisors]

    def __str__(self) -> str:
        return self.text()

    def text(self, explain: bool = False) -> str:
        """One screen, within the terminal and 100 columns."""
        lines = [wrapped(self.answer), *shell_lines(self.command), ""]
        lines.append(wrapped(self._title))
        for advisor, found in self.parts:
            kind = [KINDS[advisor.lengths.kind]] * (len(self.parts) > 1)
            lines += [*kind, as_text(advice_rows(advisor, found, self.every, explain))]
        lines += [wrapped(note) for note in self.notes()]
        caveats = (f"caveat: {each}" for each in self._caveats)
        more = self._details() if explain else ["--explain shows how this is computed."]
        lines += [wrapped(line, "  ") for line in (*caveats, *more)]
        return "\n".join(lines)

    def markdown(self) -> str:
        """For an issue or a pull request."""
        lines = [f"**{self.answer}**", "", self._title]
        for advisor, found in self.parts:
            rows = advice_rows(advisor, found, self.every)
            cells = [rows.head, ["---"] * len(rows.head), *rows.cells]
            lines += ["", *(f"| {' | '.join(map(str, row))} |" for row in cells)]
        known = (*self.notes(), *self._details(), *self._caveats)
        return "\n".join([*lines, "", *(f"- {each}" for each in known)])

    def json(self) -> str:
        """All numbers; an end that no interval has is null."""
        table, plan = self._served.table, self.plan
        content = {
            "answer": self.answer,
            "command": self.command,
            "table": {"path": str(table.path), **to_mapping(table.key)},
            "parts": [
                {"kind": advisor.lengths.kind, "batches": to_mapping(found)}
                for advisor, found in self.parts
            ],
            "plan": {**to_mapping(plan), "advised": plan.advised},
            "notes": [*self.notes()],
            "details": [*self._details()],
            "caveats": self._caveats,
        }
        return json.dumps(finite(content), ensure_ascii=False, indent=1)

    @property
    def _served(self) -> ServedStep:
        return self.advisors[0].served

    @property
    def _caveats(self) -> Sequence[str]:
        stated = ", ".join(map(str, self.advisors[0].lengths.stated))
        fitted = f"accepted lengths at other K are fitted to K = {stated}, not measured"
        context, last = self.advisors[0].context, self.advisors[0].batches[-1]
        ends = f"at context {context:g} the table ends at batch {last}"
        shorter = last < self._served.table.axes.batch[-1]
        at = (c for b in self.batches for c in self._served.caveats_at(b, context))
        found = (*[fitted] * bool(stated), *at, *[ends] * shorter)
        return [*dict.fromkeys(found)]

    @property
    def _title(self) -> str:
        return f"{self._served.table.title}, context {self.advisors[0].context:g}:"

    @property
    def answer(self) -> str:
        return str(Answer(self.advisors[0], self.plan))

    @property
    def command(self) -> str:
        """What runs the table's engine so, or writes the file that it reads; or ""."""
        table, advised = self._served.table, self.plan.advised
        engine = table.key.engine
        if not advised or engine not in ENGINES:
            return ""
        command = ENGINES[engine](advised, self.advisors[0]).command
        if "FILE" not in command:
            return command
        path = str(table.path) if table.path.name else "TABLE"
        words = ("evict-profile", "export", path, "--for", engine, *self.asked)
        return shlex.join(words)

    def _details(self) -> Iterator[str]:
        """What the advice rests on."""
        served = self._served
        yield f"acceptance: {self.advisors[0].lengths.source}"
        yield f"drafting: {served.drafting.workload}"
        if served.overheads:
            yield f"overheads: {served.overheads}"

    def notes(self) -> Iterator[str]:
        """Other lengths, and where the advice is slower or not certain."""
        plan, chains = self.plan, self.parts[0][1]
        if plan.drafts:
            yield from self._other_lengths()
        if len(plan.advised) > 1:
            one = f"K={plan.drafts} runs at {plan.gain:.2f} times plain decoding."
            yield (
                f"{one if plan.drafts else 'No single K is faster.'} A schedule is "
                f"advised if it gains {CHANGE - 1.0:.0%} more: with one vLLM fell "
                "to piecewise graphs, from 59.6 to 50.0 tokens a second (vLLM #49548)."
            )
        if loses := [str(each.batch) for each in chains if plan.speed(each) < 1.0]:
            yield f"Drafting is slower than plain decoding at batch {', '.join(loses)}."
        if unsure := [str(each.batch) for each in chains if not each.sure]:
            batches = ", ".join(unsure)
            yield f"Intervals do not settle whether drafting pays at batch {batches}."
        yield from self.tree_flags()

    def _other_lengths(self) -> Iterator[str]:
        plan, chains = self.plan, self.parts[0][1]
        gains = {k: v for each in chains for k, v in each.speeds.items() if k}
        near = [k for k, v in gains.items() if v > 0.99 * plan.gain]
        if len(chains) == 1 and (others := [k for k in near if k != plan.drafts]):
            yield f"Within 1 % of it: {', '.join(f'K={k}' for k in others)}."
        if (longest := max(gains)) == plan.drafts:
            yield f"K={longest} is the longest that was compared; more may gain more."

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
    outside: Outside = "refuse",
    drafter: str | None = None,
    reader: str = "",
) -> Advice:
    """Recommend draft lengths from acceptance alone.

    Args:
        accept: a rate, accepted lengths or a file, as `acceptance_of` reads them.
        batch: batch sizes of which to show every draft length; by default the best of
            each of the table's.
        traffic: shares of plain decoding's time by batch, as `traffic_of` reads them.
        context: tokens; by default the table's smallest.
        draft_level_ms: of one forward of the drafter; by default the table's.
        outside: "clamp" reads what the table does not cover at its nearest place.
        drafter: as `drafter_of` reads it; by default MTP layers, else EAGLE-3.
        reader: the engine that is to serve it.

    Raises:
        ConfigError: if acceptance or traffic cannot be read, or the table does not
            cover what is asked for.
    """
    shares = traffic_of(traffic) if traffic else {}
    advisors = [
        Advisor.of(table, lengths, context, draft_level_ms, outside, drafter)
        for lengths in acceptance_of(accept)
    ]
    one = [1] if reader == "llama-cpp" else ()  # It decodes one request at a time.
    batches = tuple(dict.fromkeys(one or batch or shares or advisors[0].batches))
    shares = shares or dict.fromkeys(batches, 1.0 / len(batches))
    # TensorRT-LLM refuses a longer draft than the smallest batch has.
    engine = reader or table.key.engine
    planned = plan(advisors[0], shares, falling=engine == "trtllm")
    kind = advisors[0].served.drafter.kind
    if engine in ENGINES and engine not in drafters()[kind]["schedules"]:
        planned = replace(planned, schedule=())
    given = {
        "--accept": accept,
        "--traffic": traffic or ",".join(f"{each}:1" for each in batch) or None,
        "--context": context,
        "--draft-level-ms": draft_level_ms,
        "--drafter": drafter,
        "--outside": None if outside == "refuse" else outside,
    }
    asked = [str(w) for pair in given.items() if pair[1] is not None for w in pair]
    return Advice(advisors, batches, planned, bool(batch), asked)


def shell_lines(command: str) -> list[str]:
    """A command over lines that a shell joins, each of at most 100 columns."""
    lines = list[str]()
    for words in re.split(r" (?=--)", command):
        if lines and len(lines[-1]) + len(words) < WIDEST - 2:
            lines[-1] += f" {words}"
        elif words:
            lines.append(f"    {words}" if lines else f"  {words}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def advice_rows(
    advisor: Advisor, advice: Sequence[BatchAdvice], every: bool, explain: bool = False
) -> Rows:
    """A row a batch, of the best way to draft; or of every way that drafts.

    Tokens per second are of one request. A data sheet gives only an upper bound.
    """
    shown = [
        (each.batch, way)
        for each in advice
        for way in (each.ways[1:] if every else (each.best,))
    ]
    columns: dict[str, Callable[[DraftOption], str]] = {
        "draft": lambda way: way.name,
        "accepted": lambda way: f"{way.committed:.2f}",
        "break-even": lambda way: f"{way.ratio:.2f}",
        "speed-up (95 %)": lambda way: spread(way.speed),
    }
    if every and any(way.served is not None for _, way in shown):
        columns["served"] = lambda way: f"{way.served:.2f}" if way.served else "-"
    origin = advisor.served.table.origin
    if origin != DATASHEET:
        tokens = "tok/s" if origin in (MEASURED, SERVED) else "estimated tok/s"
        columns[tokens] = lambda way: f"{1e6 * way.committed / way.step_us:.0f}"
    if explain:
        columns["step, ms"] = lambda way: f"{way.step_us / 1e3:.2f}"
    cells = [(batch, *(show(way) for show in columns.values())) for batch, way in shown]
    return Rows(("batch", *columns), cells)

"""Advice on drafting: one screen, or a JSON document."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

from evict_profile.advice.advise import Advisor, BatchAdvice, DraftOption
from evict_profile.advice.decide import Decision, decide
from evict_profile.advice.steps import Steps
from evict_profile.integrations.exporters import ENGINES
from evict_profile.io import finite
from evict_profile.records import to_mapping
from evict_profile.report.console import WIDEST, Rows, as_text, wrapped
from evict_profile.report.numbers import spread, three_digits
from evict_profile.served.table import ServedTable

P = ParamSpec("P")
BEST = " *"
LEGEND = "* best of its batch; a K that did not run has to be surely faster"
KINDS = {"chain": "chains", "tree": "trees, cut to their best nodes"}


@dataclass(frozen=True)
class Advice:
    """A decision as text and as JSON.

    `preface` is the number of GPUs, if the table was found by name; `reason` why none
    answers.
    """

    decision: Decision
    preface: str = ""
    reason: str = ""
    names: tuple[str, str] = ("MODEL", "GPU")

    def __str__(self) -> str:
        steps = self._steps
        lines = [unbroken(self.answer)]
        if self.reason:
            lines.append(unbroken(f"No table answers: {self.reason}."))
        lines += self._settling
        if steps.table:
            at = "" if steps.context is None else f", context {steps.context:.0f}"
            lines += ["", unbroken(f"{steps.table.title}{at}:")]
            parts = self.decision.parts
            for advisor, batches in parts:
                lines += [KINDS[advisor.lengths.kind]] * (len(parts) > 1)
                lines += [as_text(rows := self.rows(advisor, batches))]
                marked = any(str(cell).endswith(BEST) for cell, *_ in rows.cells)
                lines += [LEGEND] * marked
        lines += shell_lines(self.command)
        caveats = (f"caveat: {text}" for text in self.decision.caveats)
        remarks = (*self.notes, *self._details, *caveats)
        return "\n".join([*lines, *(unbroken(line, "  ") for line in remarks)])

    def json(self) -> str:
        """All numbers; an infinite end of an interval is null."""
        plan, table = self.decision.plan, self._steps.table
        names = ("drafts", "gain", "over", "advised")
        chosen = {name: getattr(plan, name) for name in names}
        key = {"path": str(table.path), **to_mapping(table.key)} if table else {}
        parts = [
            {
                "kind": advisor.lengths.kind,
                "ways": [self._numbers(at, w) for at in batches for w in at.ways[1:]],
            }
            for advisor, batches in self.decision.parts
        ]
        content = {
            "answer": self.answer,
            "reason": self.reason,
            "command": self.command,
            "table": key,
            "plan": {} if self._steps.estimated else to_mapping(chosen),
            "parts": parts,
            "notes": self.notes,
            "details": self._details,
            "caveats": self.decision.caveats,
        }
        return json.dumps(finite(content), ensure_ascii=False, indent=1)

    def _numbers(self, at: BatchAdvice, way: DraftOption) -> dict[str, Any]:
        left_out = {"speed", "step_us"} if self._steps.estimated else set()
        own = {"committed": way.committed, "verdict": way.verdict}
        stated = {"batch": at.batch, **to_mapping(way), **own}
        return {name: value for name, value in stated.items() if name not in left_out}

    @property
    def _steps(self) -> Steps:
        return self.decision.advisor.steps

    @property
    def answer(self) -> str:
        return f"{self.preface}{self.decision.answer}"

    @property
    def command(self) -> str:
        """The command that runs the table's engine, or prints the flags of one."""
        decision, table, engine = self.decision, self._steps.table, self.decision.engine
        advised = () if self._steps.estimated else decision.plan.advised
        if not (table and advised and decision.answer.settled):
            return ""
        if engine in ENGINES:
            command = ENGINES[engine](advised, decision.advisor).command
            if "FILE" not in command:
                return command
        reader = engine if engine in ENGINES else "ENGINE"
        words = ("export", self._file, "--for", reader, *decision.asked)
        return shlex.join(("evict-profile", *words))

    @property
    def _file(self) -> str:
        table = self._steps.table
        return str(table.path) if table and table.path.name else "TABLE"

    @property
    def _settling(self) -> list[str]:
        answer, table = self.decision.answer, self._steps.table
        if answer.settled and not self._steps.estimated:
            return []
        model, gpu = self.names
        if table:
            own, gpu = table.key.model, table.key.gpu
            is_own = model.rpartition("/")[2].lower() in ("model", own.lower())
            model = own if is_own else model
        what = "measure" if answer.settled else "settle"
        way = answer.to_settle
        turns = "in turns and longer than before"
        how = turns if way.basis == "measured" else "one after the other"
        batches = [str(batch) for batch in self._open_batches]
        files = [*[self._file] * isinstance(table, ServedTable), "runs.jsonl"]
        return [
            unbroken(
                f"To {what} it, time plain decoding and K = {way.levels} at batch "
                f"{', '.join(batches)} on your server, {how}, and make a table:"
            ),
            f"  evict-profile probe URL --batch {','.join(batches)} --out runs.jsonl",
            *shell_lines(
                f"evict-profile import {shlex.join([*files, '--model', model])} "
                f"--gpu {shlex.quote(gpu)}"
            ),
        ]

    @property
    def _open_batches(self) -> list[int]:
        """Those that are not settled; of the whole table of a server the first."""
        batches, estimated = [*self.decision.batches], self._steps.estimated
        found = [b for b in batches if not self._is_settled(b)]
        every = self.decision.every or (found and estimated)
        return (found or batches)[: None if every else 1]

    def _is_settled(self, batch: int) -> bool:
        drafts = self.decision.answer.to_settle.levels
        way = self.decision.advisor.at(batch).by_levels.get(drafts)
        return way.verdict != "not settled" if way else self._steps.estimated

    @property
    def notes(self) -> list[str]:
        return [*self.decision.notes(), *self.tree_flags()]

    @property
    def _details(self) -> list[str]:
        drafting = self._steps.drafting
        source = f"acceptance: {self.decision.advisor.lengths.source}"
        return [source, *[f"drafting: {drafting}"] * bool(drafting)]

    def tree_flags(self) -> Iterator[str]:
        (_, chains), *rest = self.decision.parts
        for chain, tree in (
            pair for _, at in rest for pair in zip(chains, at, strict=True)
        ):
            best = tree.best
            if best.levels and best.speed.value > chain.best.speed.value:
                yield (
                    f"SGLang at batch {tree.batch}: --speculative-num-steps "
                    f"{best.levels} --speculative-num-draft-tokens {best.width}, "
                    "topk as traced"
                )

    def rows(self, advisor: Advisor, advice: Sequence[BatchAdvice]) -> Rows:
        shown = [
            (at.batch, way) for at in advice for way in self.decision.shown(advisor, at)
        ]
        plan = self.decision.plan
        even, speed = (
            (f"even with {plan.over} (95 %)", f"times {plan.over} (95 %)")
            if plan.reference
            else ("break-even (95 %)", "speed-up (95 %)")
        )
        columns: dict[str, Callable[[DraftOption], str]] = {
            "draft": lambda way: way.name,
            speed: lambda way: spread(way.speed),
            even: lambda way: spread(way.break_even),
            "accepted": lambda way: f"{way.committed:.2f}",
        }
        if self._steps.estimated:
            del columns[speed]
            # A speed has the error of its length; a verdict needs it beside.
            columns["accepted"] = lambda way: spread(way.accepted)
            columns["verdict"] = lambda way: way.verdict
        else:
            if any(way.basis != "table" for _, way in shown):
                columns["known from"] = lambda way: way.basis
            if any(way.step_us for _, way in shown):
                columns["tok/s a request"] = lambda way: (
                    three_digits(1e6 * way.committed / way.step_us)
                    if way.step_us
                    else "-"
                )
        served = advisor.lengths.served
        if any(way.levels in served for _, way in shown):
            columns["served"] = lambda way: (
                f"{served[way.levels]:.2f}" if way.levels in served else "-"
            )
        best = {at.batch: at.best.name for at in advice if not self._steps.estimated}
        differ = len({*best.values()}) > 1 and len(shown) > len(advice)
        cells = [
            (
                f"{batch}{BEST}" if differ and best[batch] == way.name else batch,
                *(show(way) for show in columns.values()),
            )
            for batch, way in shown
        ]
        return Rows(("batch", *columns), cells)


def _printed(decided: Callable[P, Decision]) -> Callable[P, Advice]:
    @wraps(decided)
    def advise(*args: P.args, **options: P.kwargs) -> Advice:
        return Advice(decided(*args, **options))

    return advise


advise = _printed(decide)
"""Recommend draft lengths from acceptance; arguments are those of `decide`."""


def unbroken(line: str, indent: str = "") -> str:
    """The line within the terminal; "K = 3" stays on one."""
    return wrapped(line.replace("K = ", "K\xa0=\xa0"), indent).replace("\xa0", " ")


def shell_lines(command: str) -> list[str]:
    """A command over lines that a shell joins, each of at most 100 columns."""
    lines = list[str]()
    for words in re.split(r" (?=--|EVICT)", command):
        if lines and len(lines[-1]) + len(words) < WIDEST - 2:
            lines[-1] += f" {words}"
        elif words:
            lines.append(f"    {words}" if lines else f"  {words}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]

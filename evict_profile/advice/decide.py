"""The decision: what is asked of which table, and what is said of it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from evict_profile.advice.acceptance import acceptance_of, of_served
from evict_profile.advice.advise import (
    Advisor,
    BatchAdvice,
    DraftOption,
    one_context,
)
from evict_profile.advice.answer import Answer, paying, stated_ways
from evict_profile.advice.capture import check_captured, to_capture
from evict_profile.advice.drafting import AT_ONCE, has_schedules
from evict_profile.advice.lengths import AcceptedLengths
from evict_profile.advice.plan import CHANGE, PLAIN, DraftPlan, plan, traffic_of
from evict_profile.advice.steps import OfServed, Table
from evict_profile.errors import ConfigError, DataError
from evict_profile.served.findings import findings, is_fault
from evict_profile.served.table import ServedTable
from evict_profile.table import Outside

SLOW = (
    "a step with a draft model of its own may take 2 to 4.4 plain steps, where other "
    "servers take 1.4 to 2.1; probe yours"
)


@dataclass(frozen=True)
class Decision:
    """Of chains, and after them of trees where a trace has them; the plan is of chains.

    Attributes:
        batches: those that are answered; `unknown` says why others are not.
        every: show all ways of each batch, else the best one and what was measured.
        accept: acceptance as it was given.
        asked: the options that `evict-profile export` takes for the same decision.
    """

    advisors: Sequence[Advisor]
    batches: Sequence[int]
    unknown: Mapping[int, str]
    plan: DraftPlan
    every: bool
    accept: str
    engine: str = ""
    asked: Sequence[str] = ()

    @property
    def advisor(self) -> Advisor:
        return self.advisors[0]

    @property
    def answer(self) -> Answer:
        given, steps = bool(self.accept), self.advisor.steps
        texts = {} if given or not isinstance(steps, OfServed) else _by_text(steps)
        return Answer(self.advisor, self.plan, given, texts)

    @cached_property
    def parts(self) -> list[tuple[Advisor, list[BatchAdvice]]]:
        """What each acceptance says of each batch."""
        return [(each, [each.at(b) for b in self.batches]) for each in self.advisors]

    def shown(self, advisor: Advisor, at: BatchAdvice) -> list[DraftOption]:
        """The ways of a batch that a table of the answer has: the best one, the drafts
        that ran or whose length is stated, and those that the answer names.
        """
        if advisor.steps.estimated:
            better = paying(advisor, at.batch, self.answer.to_settle.levels)
            shown = {w.levels for w in (*stated_ways(advisor, at.batch), better) if w}
            return [w for w in at.ways[1:] if self.every or w.levels in shown]
        if self.every:
            return [*at.ways]
        named = {w.levels for w in (self.plan.lead, self.plan.rival) if w}
        named |= {w.levels for w in at.ways[1:] if w.basis == "measured"}
        named |= {*advisor.lengths.stated}
        return [way for way in at.ways if way is at.best or way.levels in named]

    @property
    def caveats(self) -> list[str]:
        lengths, steps = self.advisor.lengths, self.advisor.steps
        stated = ", ".join(map(str, lengths.stated))
        fitted = f"accepted lengths at other K are fitted to K = {stated}, not measured"
        ways = (w for at in self.parts[0][1] for w in self.shown(self.advisor, at))
        said = {w.levels for w in (*ways, self.plan.lead, self.plan.rival) if w}
        others = lengths.fitted and bool(said - {0, *lengths.stated})
        at = (c for b in self.batches for c in steps.caveats(b))
        separate = self.advisor.drafter in ("draft_model", *AT_ONCE)
        slow = [SLOW] * (steps.estimated and separate)
        return [*dict.fromkeys((*[fitted] * others, *slow, *at))]

    def notes(self) -> Iterator[str]:
        """Other lengths, and what is slower, not known, or read in one of two ways."""
        if not self.advisor.lengths.stated:
            yield (
                f"{self.accept} was read as the chance that the first draft is "
                "accepted; a mean over positions is lower: give the accepted length "
                "as K:LENGTH."
            )
        yield from self._unused()
        if not self.advisor.steps.estimated:
            yield from self._of_plan()
            yield from to_capture(self.plan.advised, self.advisor.steps, self.engine)
            lead = self.plan.lead.levels
            if split := self.advisor.steps.split(self.batches[0], lead):
                yield split
        elif len({*self.plan.traffic.values()}) > 1:
            yield "Shares of --traffic weigh no batch: an estimate judges each alone."
        if isinstance(steps := self.advisor.steps, OfServed):
            yield from _trees(steps)
            found = findings(steps.table.runs, steps.table.left_out)
            yield from (each.sentence for each in found if is_fault(each))
        for batch, reason in self.unknown.items():
            yield f"Not known at batch {batch}: {reason}."

    def _unused(self) -> Iterator[str]:
        """The lengths of the runs, where one that is given stands for other text."""
        steps, given = self.advisor.steps, self.advisor.lengths.stated
        if not (self.accept and isinstance(steps, OfServed)):
            return
        with suppress(ConfigError):  # No run states a length.
            own = of_served(steps.table, steps.context)
            every = zip(own.levels.tolist(), own.committed, strict=True)
            kept = {*own.stated} - {*given}
            if left := [f"{k}:{length:.2f}" for k, length in every if k in kept]:
                yield (
                    f"Lengths that the runs state ({','.join(left)}) are not used, as "
                    "--accept may be of other text; if it is of theirs, give these in "
                    "it too."
                )

    def _of_plan(self) -> Iterator[str]:
        plan = self.plan
        if len({*plan.traffic.values()}) == 1 < len(plan.traffic):
            yield "Batches share the time equally; state yours: --traffic 1:.2,8:.8"
        if len(plan.advised) > 1:
            one = f"K = {plan.drafts} alone is {plan.lead.speed.value:.2f} times."
            yield (
                f"{one if plan.drafts else 'No single K pays.'} A schedule is "
                f"advised where it gains {CHANGE - 1.0:.0%} more, or alone surely pays."
            )
            if isinstance(steps := self.advisor.steps, OfServed):
                served = ", ".join(map(str, steps.batches()))
                yield f"Served batches are {served}; others lie between them."
            if self.engine == "vllm":
                yield (
                    "With a schedule vLLM falls to piecewise graphs (from 59.6 to 50.0 "
                    "tokens a second in vLLM #49548); VLLM_USE_V2_MODEL_RUNNER=1 keeps "
                    "whole ones."
                )


def decide(
    table: Table | None,
    accept: str | None = None,
    *,
    batch: Sequence[int] | int = (),
    traffic: str | None = None,
    context: float | None = None,
    draft_level_ms: float | None = None,
    outside: Outside = "refuse",
    drafter: str | None = None,
    captured: Sequence[int] = (),
    reader: str = "",
) -> Decision:
    """Decide how much to draft from acceptance and what is known of steps.

    Args:
        table: of a sweep, of runs of a server, or estimated; None knows other servers.
        accept: a rate, accepted lengths or a file, as `acceptance_of` reads them; None
            takes the lengths that the runs of a served table state.
        batch: batch sizes of which to show every draft length; by default the best of
            each of the table's.
        traffic: shares of plain decoding's time by batch, as `traffic_of` reads them.
        context: tokens; by default the table's smallest.
        draft_level_ms: of one forward of the drafter; by default the table's.
        outside: "clamp" reads what a sweep does not cover at its nearest place.
        drafter: its kind, which decides the flags; by default MTP layers, else EAGLE-3.
        captured: sizes of a server's CUDA graphs, as its flag takes them: requests
            for SGLang, else tokens.
        reader: the engine that is to serve it.

    Raises:
        ConfigError: if acceptance or traffic cannot be read, or the table does not
            cover what is asked for, or if no graph holds an advised step.
    """
    shares = traffic_of(traffic) if traffic else {}
    wanted = (batch,) if isinstance(batch, int) else tuple(dict.fromkeys(batch))
    advisor, *others = (
        Advisor.of(table, each, context, draft_level_ms, outside, drafter, wanted)
        for each in _accepted(table, accept, context)
    )
    batches = wanted or tuple(shares) or advisor.batches
    known, unknown = _known(advisor, batches)
    shares = shares or dict.fromkeys(known, 1.0 / len(known))
    named = reader or (table.key.engine if table else "")
    engine = re.sub("[._]", "-", named)  # "llama.cpp" is a word of its server.
    by_batch = has_schedules(engine, advisor.drafter) and not advisor.steps.estimated
    # TensorRT-LLM refuses a longer draft than the smallest batch has.
    falling, graphs = engine == "trtllm", captured if engine == "sglang" else ()
    planned = plan(advisor, shares, falling, by_batch, graphs)
    if captured:
        check_captured(captured, planned, advisor.steps, engine)
    given = {
        "--accept": accept,
        "--traffic": traffic or ",".join(f"{each}:1" for each in wanted) or None,
        "--context": context,
        "--draft-level-ms": draft_level_ms,
        "--drafter": drafter,
        "--captured": ",".join(map(str, captured)) or None,
        "--outside": None if outside == "refuse" else outside,
    }
    asked = [str(w) for pair in given.items() if pair[1] is not None for w in pair]
    every = bool(wanted)
    return Decision(
        [advisor, *others], known, unknown, planned, every, accept or "", engine, asked
    )


def _accepted(
    table: Table | None, accept: str | None, context: float | None
) -> tuple[AcceptedLengths, ...]:
    if accept:
        return acceptance_of(accept)
    if isinstance(table, ServedTable):
        return (of_served(table, one_context(table, context)),)
    raise ConfigError(
        "give --accept, such as the accepted length of K: 3:2.4; only a server's runs "
        "state their own"
    )


def _trees(steps: OfServed) -> Iterator[str]:
    """What the trees that ran gave, beside the chains that are advised."""
    for each in steps.table.settings:
        if each.is_chain or not (length := each.accept_length):
            continue
        with suppress(DataError):
            place = (each.batch, each.width, each.levels, steps.context)
            speed = length.value / steps.table.ratio(*place).value.value
            yield f"A tree ran too: {each.name} is {speed:.2f} times {PLAIN}."


def _by_text(steps: OfServed) -> dict[str, Advisor]:
    """The server on each of its texts, with the lengths of that text."""
    found = dict[str, Advisor]()
    for text in steps.table.texts:
        own, context = steps.table.of_text(text), steps.context
        with suppress(DataError, ConfigError):
            found[text] = Advisor(OfServed(own, context), of_served(own, context))
    return found


def _known(
    advisor: Advisor, batches: Sequence[int]
) -> tuple[tuple[int, ...], dict[int, str]]:
    """The batches with one reference, plain decoding if any has it; and the others."""
    references, unknown = dict[int, int](), dict[int, str]()
    path = advisor.steps.table.path if advisor.steps.table else ""
    for batch in batches:
        try:
            references[batch] = advisor.at(batch).ways[0].levels
        except DataError as error:
            unknown[batch] = str(error).removeprefix(f"{path}: ")
    if not references:
        raise DataError(f"{path}: {unknown[batches[0]]}")
    least = min(references.values())
    known = tuple(b for b, drafts in references.items() if drafts == least)
    for batch in references.keys() - {*known}:
        unknown[batch] = "plain decoding was not served; ask for it alone"
    return known, unknown

"""Draft lengths by batch and context.

A step reads its context's cache once, however many tokens it verifies. Where that takes
much of a step, a further draft costs relatively less.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from evict_profile.advice.advise import CHANGE, Advisor, plan
from evict_profile.advice.answer import Answer
from evict_profile.errors import DataError
from evict_profile.table import CostTable


class ScheduleEntry(NamedTuple):
    """A draft length at batches and contexts, ends included, as vLLM orders them."""

    first: int
    last: int
    shortest: int
    longest: int
    drafts: int


def at_contexts(
    table: CostTable,
    smallest: Answer,
    level_ms: float | None,
    drafter: str | None = None,
) -> list[Answer]:
    """From the answer at a table's smallest context those at all.

    A plan is kept at the next context unless that one's own gains 5 % more there.
    """
    contexts, answers = sorted(table.axes.context), [smallest]
    if len(contexts) == 1:
        raise DataError(
            f"{table.path}: has costs at context {contexts[0]} alone; leave out "
            "--by-context"
        )
    for context in contexts[1:]:
        # Large batches may end at a shorter context, which is taken for them.
        lengths = smallest.advisor.lengths
        advisor = Advisor.of(table, lengths, context, level_ms, "clamp", drafter)
        kept = Answer(advisor, answers[-1].plan)
        own = Answer(advisor, plan(advisor, kept.plan.traffic))
        answers.append(own if own.gain.value > CHANGE * kept.gain.value else kept)
    return answers


def cells(answers: Sequence[Answer]) -> tuple[ScheduleEntry, ...]:
    """Every batch and context once; none where one plan is kept at all contexts.

    Between two plans a context ends at the geometric mean of the table's neighbours.
    """
    ends, plans = [0], [answers[0].plan]
    for before, after in pairwise(answers):
        if after.plan != plans[-1]:
            middle = math.sqrt(before.advisor.context * after.advisor.context)
            ends.append(max(1, round(middle)))
            plans.append(after.plan)
    if len(plans) == 1:
        return ()
    spans = [*pairwise([*ends, round(answers[-1].advisor.context)])]
    largest = max(plans[0].traffic)
    starts = {r.first for each in plans for r in each.advised if r.first <= largest}
    batches = pairwise([*sorted({1, *starts}), largest + 1])
    return tuple(
        ScheduleEntry(first, after - 1, end + 1, longest, each.drafts_at(first))
        for first, after in batches
        for each, (end, longest) in zip(plans, spans, strict=True)
    )

"""Steps of the real engine draft all levels or fewer, and say what plain decoding does.

The table decides which, from what past steps accepted.
"""

from dataclasses import dataclass

import pytest

from evict_profile.drafting import DraftClock, Drafting
from evict_profile.records import replace
from evict_profile.runtime.depth import LEAST_STEPS
from tests.factories import ACCEPTANCE
from tests.sglang.engine import Tree
from tests.sglang.serving import Request, Step, cut_replies, replies
from tests.sglang.test_engine import LONGEST, PROMPTS, Plain, batches
from tests.sglang.test_ranks import SLOW_LEADER

pytestmark = pytest.mark.slow

FEWER = 2
TREE, CHAIN = Tree(3, 4, 10), Tree(4, 1, 5, algorithm="NEXTN")
NARROW = Tree(3, 2, 7)
"""For two ranks, whose own weights rank nodes of the third level below these."""

HARD, EASY = (810, 12, 5), (820, 4, 9)
LONG = {HARD: 70, EASY: 150}
"""Tokens of the replies, one after the other: the table decides in all their steps."""


def slow_and_sure(table):
    """Each level takes a quarter of a verification, and any draft promises much, so
    that trees are wide wherever drafts are right.
    """
    level_us = 0.25 * float(table.step_cost_us(1, 64)[1])
    levels = tuple(level_us * level for level in range(5))
    clock = DraftClock(1, levels, 0.0, 0.0)
    acceptance = replace(
        ACCEPTANCE, scores=(0.0, 1e-6, 1.0), acceptances=((0.0, 0.9, 1.0),)
    )
    return replace(
        table,
        drafting=Drafting("none", "a test", (clock,)),
        acceptance=replace(acceptance, conditional=None),
    )


@dataclass(frozen=True)
class Run:
    tree: Tree
    by_rank: list[str]
    asked: list[list[Request]]
    said: list[list[list[int]]]
    steps: list[Step]
    plain: Plain


def plain_of(folder, tp):
    asked = [Request(prompt, LONGEST + 8) for prompt in PROMPTS]
    long = [Request(prompt, n + 8) for prompt, n in LONG.items()]
    short, longer = replies(folder, None, [asked, long], {}, "target", tp)
    return Plain(dict(zip((*PROMPTS, *LONG), short + longer, strict=True)))


@pytest.fixture(
    scope="module",
    params=[
        (TREE, ()),
        (CHAIN, ()),
        (NARROW, SLOW_LEADER),
        (CHAIN, SLOW_LEADER),
    ],
    ids=str,
)
def run(request, fitted, tmp_path_factory):
    """The engine once: forced depths and widths, then those that the table decides,
    which without the width 1 draft in every step.
    """
    (tree, ranks), folder = request.param, tmp_path_factory.mktemp("depth")
    plain = plain_of(folder, len(ranks) or 1)
    asked = [*batches(plain), *([Request(p, n)] for p, n in LONG.items())]
    made = cut_replies(
        folder,
        fitted,
        tree,
        asked,
        plain.known,
        decided=[HARD[0], EASY[0]],
        ranks=ranks,
        known_to=slow_and_sure,
        texts={"hard": [HARD[0]], "easy": [EASY[0]]},
        FEWER_STEPS=str(FEWER),
        CAPTURE_SIZES=",".join(map(str, range(2, tree.num_draft_tokens + 1))),
    )
    logs = [(folder / f"steps.{n}").read_text() for n in range(len(ranks))]
    return Run(tree, logs, asked, made.said, made.steps, plain)


def test_says_what_plain_decoding_says(run):
    for asked, said in zip(run.asked, run.said, strict=True):
        assert said == [run.plain.reply(request) for request in asked]


def test_all_ranks_verify_the_same_nodes(run):
    assert all(log == run.by_rank[0] for log in run.by_rank)


def test_drafts_all_levels_and_fewer_at_every_width(run):
    forced = [s for s in run.steps if not s.decided and not s.paused]
    for fewer in (False, True):
        widths = {step.width for step in forced if step.fewer is fewer}
        assert widths == set(range(1, run.tree.num_draft_tokens + 1))


def test_accepts_as_many_levels_as_were_drafted(run):
    drafted = [step for step in run.steps if not step.paused]
    deepest = FEWER if run.tree is NARROW else run.tree.num_steps
    for fewer, levels in ((False, deepest), (True, FEWER)):
        accepted = {n - 1 for s in drafted if s.fewer is fewer for n in s.tokens}
        assert accepted >= set(range(levels + 1))


def test_hard_text_drafts_fewer_levels_and_easy_text_all_again(run):
    decided = "".join("af"[s.fewer] for s in run.steps if s.decided)
    hard, easy = decided[: LONG[HARD] - 1], decided[LONG[HARD] - 1 :]
    assert hard == "a" * (LEAST_STEPS - 1) + "f" * (len(hard) - LEAST_STEPS + 1)
    assert easy.startswith("f") and easy.endswith("a")
    assert decided.count("af") + decided.count("fa") == 2

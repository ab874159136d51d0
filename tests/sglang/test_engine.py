"""The real engine, with drafts cut to every width, says what plain decoding says."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest

from evict_profile.calibrate.drafting import by_level
from evict_profile.calibrate.study import calibrate
from evict_profile.drafting import Drafting
from evict_profile.traces import load_traces
from tests.sglang.engine import Tree
from tests.sglang.serving import Request, Step, cut_replies, fp8_target, replies

PROMPTS = ((5, 6, 7), (900, 3, 44, 17, 230, 81, 6), (71,) * 20, tuple(range(300, 333)))
LONGEST = 56
DECIDED = (800, 12, 5)
"""A prompt whose widths the table decides."""

TREES = (
    Tree(num_steps=3, topk=4, num_draft_tokens=10),
    Tree(num_steps=4, topk=1, num_draft_tokens=5, algorithm="NEXTN"),
)
MORE_TREES = (
    Tree(num_steps=5, topk=2, num_draft_tokens=12),
    Tree(num_steps=2, topk=8, num_draft_tokens=16),
    Tree(num_steps=1, topk=4, num_draft_tokens=5),
    Tree(num_steps=5, topk=1, num_draft_tokens=6),
    Tree(num_steps=1, topk=1, num_draft_tokens=2),
    Tree(num_steps=3, topk=4, num_draft_tokens=10, algorithm="EAGLE"),
)
MTP_TREES = (Tree(3, 4, 10, algorithm="NEXTN"), Tree(3, 1, 4, algorithm="NEXTN"))
"""Drafted by the MTP layer of GLM-4.5."""

CASES = [
    *((tree, "target") for tree in TREES),
    *(
        pytest.param((tree, target), marks=pytest.mark.slow)
        for target, trees in {"target": MORE_TREES, "grouped": MTP_TREES}.items()
        for tree in trees
    ),
]
"""Each with the target that it drafts for."""


@dataclass(frozen=True)
class Plain:
    sequences: dict[tuple[int, ...], list[int]]

    @property
    def known(self):
        return [[*prompt, *said] for prompt, said in self.sequences.items()]

    def reply(self, request):
        """The reply to a request: it ends at its length, or with its stop token."""
        said = self.sequences[request.prompt][: request.max_new_tokens]
        ends = [i for i, token in enumerate(said) if token in request.stop]
        return said[: ends[0] + 1] if ends else said


@pytest.fixture(scope="module")
def plain_of(tmp_path_factory):
    """Plain decoding of a target, once."""
    return cache(lambda to: decoded_plainly(tmp_path_factory.mktemp("plain"), to))


@pytest.fixture
def plain(cut, plain_of):
    return plain_of(cut.target)


def decoded_plainly(folder, target="target", tp=1):
    """Weights are drawn by rank, so each number of ranks is a model of its own."""
    prompts = [*PROMPTS, DECIDED]
    asked = [[Request(prompt, LONGEST + 8) for prompt in prompts]]
    (said,) = replies(folder, None, asked, {}, target, tp)
    return Plain(dict(zip(prompts, said, strict=True)))


@dataclass(frozen=True)
class Cut:
    """A run of the engine with cut trees: what was asked, said, and done."""

    tree: Tree
    target: str
    requests: list[list[Request]]
    said: list[list[list[int]]]
    steps: list[Step]
    chains: list[tuple[list[float], list[float]]]


def batches(plain):
    """Batches of 1 to 4 prompts of all lengths, whose replies end apart."""
    found = []
    for size in (4, 3, 2, 1):
        lengths = [LONGEST - 13 * i for i in range(size)]
        found.append([Request(p, n) for p, n in zip(PROMPTS, lengths, strict=False)])
    stops = [
        Request(p, LONGEST, (plain.sequences[p][9 + 4 * i],))
        for i, p in enumerate(PROMPTS)
    ]
    return [*found, stops]


@pytest.fixture(scope="module", params=CASES, ids=str)
def cut(request, plain_of, fitted, tmp_path_factory):
    """The engine once, through all batches; a step is one wider than the last."""
    (tree, target), folder = request.param, tmp_path_factory.mktemp("cut")
    plain = plain_of(target)
    asked = [*batches(plain), [Request(DECIDED, LONGEST)]]
    run = cut_replies(folder, fitted, tree, asked, plain.known, DECIDED[:1], target)
    return Cut(tree, target, asked, run.said, run.steps, run.chains)


def test_says_what_plain_decoding_says(cut, plain):
    for asked, said in zip(cut.requests, cut.said, strict=True):
        assert said == [plain.reply(request) for request in asked]


def test_verifies_every_width(cut):
    widths = {step.width for step in cut.steps}
    assert widths == set(range(1, cut.tree.num_draft_tokens + 1))


def test_the_table_decides_each_step_anew(cut):
    """A lone draft may pay in every step, by the scores of this CPU's kernels."""
    widths = {step.width for step in cut.steps if step.decided}
    assert len(widths) > 1 or cut.tree.num_draft_tokens == 2 == max(widths)


def test_accepts_paths_of_every_length(cut):
    """Else equal tokens would show nothing: a tree whose drafts all fail is easy."""
    seen: dict[int, set[int]] = defaultdict(set)
    for step in cut.steps:
        seen[step.width].update(step.tokens)
    assert set.union(*seen.values()) == set(range(1, cut.tree.num_steps + 2))
    assert sum(len(lengths) > 1 for lengths in seen.values()) >= len(seen) - 2
    assert seen[1] == {1}


def test_a_step_that_drafted_nothing_is_followed_by_one_that_is_accepted(cut):
    after = [
        step.tokens
        for before, step in pairwise(cut.steps)
        if before.paused and step.width > 1
    ]
    assert max(map(max, after)) > 1


def test_a_chain_is_scored_by_the_drafters_own_probabilities(cut):
    assert bool(cut.chains) == (cut.tree.topk == 1)
    for kept, said in cut.chains:
        assert kept == pytest.approx(said, rel=1e-4)
    if cut.chains:
        assert len({kept[0] for kept, _ in cut.chains}) > len(cut.chains) / 2


@pytest.mark.slow
def test_a_fixed_width_says_what_plain_decoding_says(plain_of, fitted, tmp_path):
    plain = plain_of("target")
    asked, *_ = batches(plain)
    decided = [prompt[0] for prompt in PROMPTS]
    fixed = {"CAPTURE_SIZES": "", "WIDTH": "4"}
    run = cut_replies(
        tmp_path, fitted, TREES[0], [asked], plain.known, decided, **fixed
    )
    assert run.said == [[plain.reply(request) for request in asked]]
    assert {step.width for step in run.steps if not step.paused} == {4}
    assert len({count for step in run.steps for count in step.tokens}) > 1


@pytest.mark.slow
def test_quantised_weights_say_what_plain_decoding_says(fitted, tmp_path):
    """FP8 in blocks, whose kernels `fp8_on_cpu` stands in for."""
    target, tree = str(fp8_target(tmp_path / "target")), TREES[0]
    plain = decoded_plainly(tmp_path, target)
    asked, *_ = batches(plain)
    run = cut_replies(tmp_path, fitted, tree, [asked], plain.known, target=target)
    assert run.said == [[plain.reply(request) for request in asked]]
    widths = {step.width for step in run.steps}
    assert widths == set(range(1, tree.num_draft_tokens + 1))
    assert len({count for step in run.steps for count in step.tokens}) > 1


@pytest.mark.slow
def test_observed_chains_calibrate_a_table(plain_of, fitted, tmp_path):
    """Their traces are whole and have the drafter's probabilities."""
    tree, plain = TREES[1], plain_of("target")
    asked = batches(plain)[:2]
    decided = [prompt[0] for prompt in PROMPTS]
    seen = {"CAPTURE_SIZES": "", "MODE": "observe", "TRACES": str(tmp_path / "traces")}
    run = cut_replies(tmp_path, fitted, tree, asked, plain.known, decided, **seen)
    assert run.said == [[plain.reply(request) for request in each] for each in asked]
    trace = load_traces(tmp_path / "traces")
    about, nodes = trace.about, trace.nodes
    assert (about.depth, about.topk, about.nodes) == (4, 1, 4)
    assert nodes.depth.tolist() == [1, 2, 3, 4] * len(trace)
    assert 0.0 < nodes.path_prob.min() < nodes.path_prob.max() < 1.0
    (accepted,) = calibrate(trace).per_rank
    assert 0.0 < accepted < 1.0
    made = by_level(Drafting("observed", "sglang", trace.clocks), None)
    for seen, clock in zip(trace.clocks, made.batches, strict=True):
        whole_us = round(seen.draft_us[-1], 1)
        assert 0.0 < clock.draft_us[1] < clock.draft_us[-1] == whole_us

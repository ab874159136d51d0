"""The real engine, with trees cut to every width, says what plain decoding says."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.sglang.engine import Tree
from tests.sglang.serving import Request, cut_replies, replies

PROMPTS = ((5, 6, 7), (900, 3, 44, 17, 230, 81, 6), (71,) * 20, tuple(range(300, 333)))
LONGEST = 56
DECIDED = (800, 12, 5)
"""A prompt whose widths the table decides."""

TREES = (Tree(num_steps=3, topk=4, num_draft_tokens=10),)
MORE_TREES = (
    Tree(num_steps=5, topk=2, num_draft_tokens=12),
    Tree(num_steps=2, topk=8, num_draft_tokens=16),
    Tree(num_steps=1, topk=4, num_draft_tokens=5),
)


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
def plain(tmp_path_factory):
    return decoded_plainly(tmp_path_factory.mktemp("plain"))


def decoded_plainly(folder, tp=1):
    """Weights are drawn by rank, so each number of ranks is a model of its own."""
    prompts = [*PROMPTS, DECIDED]
    asked = [[Request(prompt, LONGEST + 8) for prompt in prompts]]
    (said,) = replies(folder, None, asked, {}, tp=tp)
    return Plain(dict(zip(prompts, said, strict=True)))


@dataclass(frozen=True)
class Cut:
    """A run of the engine with cut trees: what was asked, said, and done."""

    tree: Tree
    requests: list[list[Request]]
    said: list[list[list[int]]]
    steps: list[tuple[int, list[int], bool]]


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


@pytest.fixture(
    scope="module",
    params=[
        *TREES,
        *(pytest.param(tree, marks=pytest.mark.slow) for tree in MORE_TREES),
    ],
    ids=str,
)
def cut(request, plain, fitted, tmp_path_factory):
    """The engine once, through all batches; a step is one wider than the last."""
    tree, folder = request.param, tmp_path_factory.mktemp("cut")
    asked = [*batches(plain), [Request(DECIDED, LONGEST)]]
    run = cut_replies(folder, fitted, tree, asked, plain.known, DECIDED[:1])
    return Cut(tree, asked, run.said, run.steps)


def test_says_what_plain_decoding_says(cut, plain):
    for asked, said in zip(cut.requests, cut.said, strict=True):
        assert said == [plain.reply(request) for request in asked]


def test_verifies_every_width(cut):
    widths = {width for width, _, _ in cut.steps}
    assert widths == set(range(1, cut.tree.num_draft_tokens + 1))


def test_accepts_paths_of_every_length(cut):
    """Else equal tokens would show nothing: a tree whose drafts all fail is easy."""
    seen: dict[int, set[int]] = defaultdict(set)
    for width, tokens, _ in cut.steps:
        seen[width].update(tokens)
    assert set.union(*seen.values()) == set(range(1, cut.tree.num_steps + 2))
    assert sum(len(lengths) > 1 for lengths in seen.values()) >= len(seen) - 2
    assert seen[1] == {1}


def test_a_step_that_drafted_nothing_is_followed_by_one_that_is_accepted(cut):
    after = [
        tokens
        for (_, _, paused), (width, tokens, _) in pairwise(cut.steps)
        if paused and width > 1
    ]
    assert max(map(max, after)) > 1


@pytest.mark.slow
def test_a_fixed_width_says_what_plain_decoding_says(plain, fitted, tmp_path):
    asked, *_ = batches(plain)
    decided = [prompt[0] for prompt in PROMPTS]
    fixed = {"CAPTURE_SIZES": "", "WIDTH": "4"}
    run = cut_replies(
        tmp_path, fitted, TREES[0], [asked], plain.known, decided, **fixed
    )
    assert run.said == [[plain.reply(request) for request in asked]]
    assert {width for width, _, paused in run.steps if not paused} == {4}
    assert len({count for _, tokens, _ in run.steps for count in tokens}) > 1

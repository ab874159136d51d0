"""The real engine within an expert budget: no layer activates more."""

import pytest

from tests.sglang.engine import Tree
from tests.sglang.serving import Request, cut_replies, replies

PROMPTS = ((5, 6, 7), (900, 3, 44, 17, 230, 81, 6))
TREE = Tree(num_steps=3, topk=4, num_draft_tokens=10)
CHAIN = Tree(num_steps=4, topk=1, num_draft_tokens=5, algorithm="NEXTN")
EXPERTS, LENGTH = 16, 24


TARGETS = ("target", pytest.param("grouped", marks=pytest.mark.slow))
"""Qwen3-MoE's router; one that picks by a biased score within groups."""


def budgeted(folder, fitted, budget, plain, target, tree=TREE):
    known = [[*p, *said] for p, said in zip(PROMPTS, plain, strict=True)]
    asked = [[Request(prompt, LENGTH) for prompt in PROMPTS]]
    return cut_replies(
        folder,
        fitted,
        tree,
        asked,
        known,
        target=target,
        EXPERT_BUDGET=str(budget),
    )


@pytest.fixture
def plain(tmp_path, target):
    asked = [[Request(prompt, LENGTH + 8) for prompt in PROMPTS]]
    folder = tmp_path / "plain"
    folder.mkdir()
    (said,) = replies(folder, None, asked, {}, target)
    return said


@pytest.mark.parametrize(
    ("target", "tree"),
    [
        ("target", TREE),
        pytest.param("grouped", TREE, marks=pytest.mark.slow),
        pytest.param("grouped", CHAIN, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_budget_is_kept_and_spent_on_likely_nodes(target, tree, fitted, tmp_path):
    """In every layer and step; roots count in full, and nodes by their probability.

    What the drafter proposes is made up: whether it is accepted does not matter.
    """
    drafted = [list(range(500, 500 + LENGTH + 8))] * 2
    run = budgeted(tmp_path, fitted, 6, drafted, target, tree)
    assert [len(said) for said in run.said[0]] == [LENGTH] * 2
    assert run.routed
    assert all(most == 6 and ran <= 6 for most, ran, _ in run.routed)
    worth = [own for _, _, own in run.routed]
    # One after the other ends, so that some steps have one request.
    assert all(own[0] == 1.0 and 0.0 <= min(own) <= max(own) <= 1.0 for own in worth)
    assert any(0.0 < each < 1.0 for own in worth for each in own)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_budget_of_all_experts_says_what_plain_decoding_says(
    target, plain, fitted, tmp_path
):
    run = budgeted(tmp_path, fitted, EXPERTS, plain, target)
    assert not run.routed
    assert run.said == [[said[:LENGTH] for said in plain]]

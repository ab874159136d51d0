"""The real engine within an expert budget: no layer activates more."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from evict_profile.fit.fitted import Fitted
from tests.sglang.engine import Tree
from tests.sglang.planted import SCRIPT, Script
from tests.sglang.serving import Request, replies, turned_on

PROMPTS = ((5, 6, 7), (900, 3, 44, 17, 230, 81, 6))
TREE = Tree(num_steps=3, topk=4, num_draft_tokens=10)
EXPERTS, LENGTH = 16, 24


@dataclass(frozen=True)
class Budgeted:
    """What the engine said, and what routing within the budget was given and gave."""

    said: list[list[int]]
    routed: list[tuple[int, int, list[float]]]


def budgeted(
    folder: Path, fitted: Fitted, budget: int, plain: list[list[int]]
) -> Budgeted:
    """Two requests at once, through every width, within a budget."""
    log, routed, script = (folder / name for name in ("steps", "routed", "script.json"))
    routed.touch()
    known = [[*p, *said] for p, said in zip(PROMPTS, plain, strict=True)]
    script.write_text(json.dumps(vars(Script(known, str(log), [], str(routed)))))
    environment = turned_on(fitted, folder, TREE.num_draft_tokens)
    asked = [[Request(prompt, LENGTH) for prompt in PROMPTS]]
    environment |= {SCRIPT: str(script), "EVICT_PROFILE_EXPERT_BUDGET": str(budget)}
    (said,) = replies(folder, TREE, asked, environment)
    lines = map(json.loads, routed.read_text().splitlines())
    return Budgeted(said, [(most, ran, worth) for most, ran, worth in lines])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Plain decoding, at more than the length that is asked for."""
    asked = [[Request(prompt, LENGTH + 8) for prompt in PROMPTS]]
    (said,) = replies(tmp_path_factory.mktemp("plain"), None, asked, {})
    return said


def test_a_budget_is_kept_and_spent_on_likely_nodes(
    plain: list[list[int]], fitted: Fitted, tmp_path: Path
) -> None:
    """In every layer and step; roots count in full, and nodes by their probability."""
    found = budgeted(tmp_path, fitted, 6, plain)
    assert [len(said) for said in found.said] == [LENGTH] * 2
    assert found.routed
    assert all(most == 6 and ran <= 6 for most, ran, _ in found.routed)
    worth = [own for _, _, own in found.routed]
    # One after the other ends, so that some steps have one request.
    assert all(own[0] == 1.0 and 0.0 <= min(own) <= max(own) <= 1.0 for own in worth)
    assert any(0.0 < each < 1.0 for own in worth for each in own)


@pytest.mark.slow
def test_a_budget_of_all_experts_says_what_plain_decoding_says(
    plain: list[list[int]], fitted: Fitted, tmp_path: Path
) -> None:
    found = budgeted(tmp_path, fitted, EXPERTS, plain)
    assert not found.routed
    assert found.said == [said[:LENGTH] for said in plain]

"""Planted routers: balanced, and what a budget loses on them."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.budget_routers import FAMILIES, Family, Layer, losses, mean
from evict_profile.runtime.budget import Groups

DOCS = Path(__file__).parents[2] / "docs/research"
SMALL = Family(32, 4, Groups(4, 2), is_biased=True)


def test_a_bias_balances_the_load_of_experts():
    """Without it, popular experts would run far more often."""
    layer = Layer(SMALL, seed=1)
    scores = layer.scores(4096, texts=1024)
    load = layer.picks(scores).mean(dim=0)
    layer.bias.zero_()
    plain = layer.picks(scores).mean(dim=0)
    assert load.std() < plain.std() / 2
    assert load.mean() == pytest.approx(4 / 32)


def test_a_budget_of_all_that_would_run_loses_nothing():
    layer = Layer(SMALL, seed=1)
    tree = layer.tree()
    needed = int((tree.gates > 0).any(dim=0).sum())
    found = losses(layer, tree, needed)
    assert found["lost by gate"] == found["changed, own groups first"] == 0.0
    assert found["lost by mass: all scores"] > 0.0


def test_nodes_count_by_their_path_probability():
    layer = Layer(SMALL, seed=1)
    tree = layer.tree()
    root = (tree.path_prob == 1.0).float()
    expected = 100.0 * float(root.sum() / tree.path_prob.sum())
    assert mean(tree, root) == pytest.approx(expected)


def test_scores_of_experts_that_no_token_picks_mislead():
    layer = Layer(SMALL, seed=2)
    trees = [layer.tree() for _ in range(5)]
    found = pd.DataFrame([losses(layer, tree, 16) for tree in trees]).mean()
    assert found["lost by mass: all scores"] > 1.2 * found["lost by gate"]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_page_states_what_the_benchmark_found(name):
    text = (DOCS.parent / "explanation/moe-spec.md").read_text()
    rows = pd.read_csv(DOCS / "data/budgets-routers.csv", dtype=str).set_index("router")
    own = rows.loc[name].set_index("Unnamed: 1")
    for row in ("lost by gate", "lost by mass: all scores"):
        assert f"| {' | '.join(own.loc[row])} |" in text

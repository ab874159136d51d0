"""Which stretches of a text are decoded, and what they activate."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

pytest.importorskip("gguf")

from examples.llama_cpp.engine import ContextSize, Model
from examples.llama_cpp.hook import Hook
from examples.llama_cpp.options import Options
from examples.llama_cpp.text import ROUTED, DecodeWindow, Text
from runners.trees import unions


@pytest.fixture(scope="module")
def opened(libllama, toy, tmp_path_factory):
    """A text in the toy model, its routes read, and the hook that read them."""
    file = tmp_path_factory.mktemp("text") / "own.txt"
    file.write_text("a word and another, " * 40)
    model = Model(libllama, toy, Options())
    hook, text = Hook(model, ContextSize(1, 32, 64)), Text(str(file), model, 40)
    text.read_routes(hook, experts=16, longest=24)
    return text, hook


def cell(width, batch=1):
    return {"width": width, "batch": batch}


def test_a_union_is_that_of_the_decode(opened):
    """Of tokens that no decode at open was cut between; mean of both layers."""
    text, hook = opened
    for at in (0, 3, 24 * 5 + 7):
        places = at + np.arange(5)
        hook.context.cut(0, 0)
        hook.context.fill(text.tokens[places], 0, [0])
        ran = unions(hook.read("own", hook.context.decode))
        assert text.union(places) == np.mean(ran)


def test_a_stretch_comes_behind_the_one_before(opened):
    """For each request apart; one seed draws one stretch, and another another."""
    text, _ = opened
    before, own, _ = text.draw(cell(3, batch=2), seed=1)
    runs = np.concatenate([before.reshape(2, 3), own.reshape(2, 3)], axis=1)
    every = np.lib.stride_tricks.sliding_window_view(text.tokens, 6)
    assert all((every == run).all(axis=1).any() for run in runs)
    assert np.array_equal(text.draw(cell(3, batch=2), seed=1).own, own)
    others = [text.draw(cell(3, batch=2), seed).own for seed in range(2, 6)]
    assert any(not np.array_equal(other, own) for other in others)


@pytest.fixture
def numbered(tmp_path):
    """Tokens that are their own places; some activate ten times as many as others."""
    (tmp_path / "any.txt").write_text("any")
    model = cast(Model, SimpleNamespace(tokens=lambda _: np.arange(ROUTED)))
    text, rng = Text(str(tmp_path / "any.txt"), model, 0), np.random.default_rng(0)
    text.activates = rng.random((ROUTED, 2, 16)) < rng.choice(
        [0.05, 0.5], (ROUTED, 1, 1)
    )
    return text


def test_stretches_activate_as_many_as_most(numbered):
    """Their mean is that of all stretches, which differ five times as much."""
    every = [numbered.union(at + np.arange(6)) for at in range(ROUTED - 5)]
    drawn = [numbered.union(numbered.draw(cell(6), seed).own) for seed in range(40)]
    assert np.std(drawn) < np.std(every) / 5.0
    assert abs(np.mean(drawn) - np.mean(every)) < np.std(every) / 4.0


@pytest.mark.parametrize("width", [1, 512])
def test_the_widest_decode_finds_a_stretch(numbered, width):
    """llama.cpp computes up to 512 tokens at once."""
    before, own, _ = numbered.draw(cell(width), seed=3)
    assert own.tolist() == (before + width).tolist()
    assert len(own) == width


@pytest.mark.parametrize("union", [3, 12])
def test_routes_go_to_the_experts_that_the_text_activates_most(union):
    """To all of them before any other, and tokens share experts as they did."""
    activated = np.array([[0, 2, 0, 5, 1] + [0] * 11, [3, 0, 0, 0, 4] + [0] * 11])
    steps = DecodeWindow(np.arange(4), np.arange(4), activated)
    rng = np.random.default_rng(union)
    drawn = [rng.permutation(np.resize(np.arange(union), (4, 3))) for _ in activated]
    found = steps.with_most_used_experts(drawn, seed=1)
    for own, routes, before in zip(activated, found, drawn, strict=True):
        used = set(np.unique(routes).tolist())
        most = np.argsort(-own)[: min(union, np.count_nonzero(own))]
        assert len(used) == union and used >= set(most.tolist())
        pairs = np.stack([routes.ravel(), before.ravel()])
        assert len(np.unique(pairs, axis=1).T) == union

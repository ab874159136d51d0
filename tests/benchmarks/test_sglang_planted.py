"""The planted world: its numbers are true, and no way of decoding changes its text."""

import importlib.util
import pkgutil
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sglang_planted.plugin import Planted
from benchmarks.sglang_planted.world import (
    CLASSES,
    PlantedWorld,
    Stage,
    accepted,
    draft,
)
from evict_profile.integrations.sglang.tree import cut

WORLD = PlantedWorld(vocabulary=4096, topk=4, texts=16, positions=4096)
STEPS, WIDTH, REQUESTS = 4, 24, 3
places = st.lists(st.integers(0, 5000), min_size=REQUESTS, max_size=REQUESTS)


STAGE = Stage(WORLD, REQUESTS, STEPS, "cpu")


def drafted_at(lengths):
    """Whole trees of the first texts, with so many tokens cached."""
    STAGE.set_scene(torch.arange(REQUESTS), torch.tensor(lengths))
    return draft(STAGE, REQUESTS, WIDTH)


def said_to(kept):
    """Tokens that each request accepts of a tree."""
    roots = torch.zeros_like(kept.tokens[:, :1])
    return accepted(kept, STAGE.says(torch.cat([roots, kept.tokens], 1)))


@pytest.mark.parametrize("guess", range(WORLD.topk))
def test_guesses_are_right_as_often_as_they_say(guess):
    likely = WORLD.probabilities[..., guess].flatten()
    right = (WORLD.right == guess).flatten().float()
    for part in likely.argsort().chunk(8):
        expected, found = likely[part].mean(), right[part].mean()
        error = (expected * (1 - expected) / len(part)).sqrt()
        assert abs(found - expected) < 4 * error


def test_guesses_are_probabilities_in_order():
    assert (WORLD.probabilities.diff(dim=-1) <= 0).all()
    assert (WORLD.probabilities.sum(-1) < 1).all() and (WORLD.probabilities > 0).all()


def test_difficulty_comes_in_bursts():
    first = WORLD.probabilities[..., 0] - WORLD.probabilities[..., 0].mean()
    near = (first[:, 1:] * first[:, :-1]).mean() / first.var()
    far = (first[:, 500:] * first[:, :-500]).mean() / first.var()
    assert near > 0.6 and abs(far) < 0.1


@given(places)
def test_trees_are_whole_and_their_scores_fall(lengths):
    drafted = drafted_at(lengths)
    inner = drafted.parent >= 0
    above = drafted.path_prob.gather(1, drafted.parent.clamp(min=0))
    assert (drafted.parent < torch.arange(WIDTH - 1)).all()
    assert (above[inner] > drafted.path_prob[inner]).all()


@given(places, st.integers(2, WIDTH))
def test_a_cut_tree_accepts_what_the_whole_one_does(lengths, width):
    whole = drafted_at(lengths)
    kept = cut(whole, width)
    longest, found = said_to(whole), said_to(kept)
    for row in range(REQUESTS):
        path = whole.tokens[row][torch.isin(whole.tokens[row], STAGE.token[row])]
        reached = torch.isin(path, kept.tokens[row]).sum()
        assert longest[row] == len(path)
        assert found[row] == reached


@given(st.lists(st.integers(1, WIDTH), min_size=1, max_size=20))
def test_every_way_of_decoding_says_the_text(widths):
    said: list[int] = []
    length = 50
    for width in widths:
        whole = drafted_at([length, 0, 0])
        count = said_to(cut(whole, width))[0] if width > 1 else 0
        said += STAGE.token[0, : count + 1].tolist()
        length += count + 1
    texts, positions = torch.zeros(len(said), dtype=torch.long), torch.arange(len(said))
    assert said == STAGE.goes_on(texts, 50 + positions).tolist()
    assert said == WORLD.behind(0, 51, len(said))


@given(places)
def test_wrong_guesses_are_nobodys_token(lengths):
    drafted = drafted_at(lengths)
    on_text = torch.isin(drafted.tokens, STAGE.token)
    assert (drafted.tokens[~on_text] % (CLASSES + 1) == CLASSES).all()
    assert (WORLD.tokens % (CLASSES + 1) < CLASSES).all()
    assert (WORLD.tokens < WORLD.vocabulary).all()


def test_too_many_levels_are_refused():
    with pytest.raises(ValueError, match="planted texts tell 30 apart"):
        Stage(WORLD, 1, CLASSES - 1, "cpu")


def test_a_world_travels_by_environment():
    assert PlantedWorld.from_environment(WORLD.as_variable()) == WORLD
    assert PlantedWorld.from_environment({}) is None


def running(*first_tokens, lengths=()):
    """A batch of SGLang's, as far as the hooks read it."""
    requests = [SimpleNamespace(origin_input_ids=[token, 1]) for token in first_tokens]
    mode = SimpleNamespace(is_idle=lambda: False)
    lengths_ = torch.tensor(lengths, dtype=torch.int32)
    return SimpleNamespace(reqs=requests, seq_lens=lengths_, forward_mode=mode)


def test_plain_steps_say_the_text_of_their_prompt():
    planted, sampled = Planted(WORLD), torch.zeros(2, dtype=torch.int32)
    planted.run_batch(lambda *_: None, None, running(5, 3))
    positions = torch.tensor([9, 20])
    said = planted.sample(lambda *_: sampled, None, None, 0, 0, 0, 0, positions)
    assert said.dtype == torch.int32
    assert said.tolist() == [int(WORLD.tokens[5, 10]), int(WORLD.tokens[3, 21])]


def test_hooks_plant_guesses_and_words():
    planted = Planted(WORLD)
    batch = running(5, 3, lengths=(9, 20))
    drafter = SimpleNamespace(speculative_num_steps=STEPS, device="cpu")
    planted.allocate(lambda _: None, drafter)
    planted.run_batch(lambda *_: None, None, batch)
    planted.draft(lambda *_, **__: None, drafter, batch)
    hangs_on = torch.arange(-1, WORLD.topk).expand(2, -1)
    seen = planted.select(
        lambda level, likely, tokens, *_: (likely, tokens, None, (0, 0, hangs_on)),
        0,
        torch.zeros(2, WORLD.topk),
        torch.zeros(2, WORLD.topk, dtype=torch.int64),
        torch.empty(0),
        torch.empty(0),
        WORLD.topk,
    )
    assert torch.equal(seen[0][0], WORLD.probabilities[5, 10])
    said = planted.verify(
        lambda **kwargs: kwargs["target_predict"],
        candidates=torch.cat([torch.zeros(2, 1, dtype=torch.int64), seen[1]], 1),
        target_predict=torch.zeros(2, WORLD.topk + 1, dtype=torch.int64),
    )
    assert said[:, 0].tolist() == [int(WORLD.tokens[5, 10]), int(WORLD.tokens[3, 21])]


def test_a_step_that_drafts_nothing_sets_the_scene():
    planted = Planted(WORLD)
    drafter = SimpleNamespace(speculative_num_steps=STEPS, device="cpu")
    planted.allocate(lambda _: None, drafter)
    planted.run_batch(lambda *_: None, None, running(5))
    trivial = next(t for t in planted.hooks() if "_build_trivial" in t)
    planted.hooks()[trivial](lambda *_: None, None, running(5, lengths=(9,)))
    said = planted.verify(
        lambda **kwargs: kwargs["target_predict"],
        candidates=torch.zeros(1, 1, dtype=torch.int64),
        target_predict=torch.zeros(1, 1, dtype=torch.int64),
    )
    assert said.tolist() == [[int(WORLD.tokens[5, 10])]]


@pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="sglang is not installed here"
)
def test_what_is_hooked_exists():
    for target in Planted(WORLD).hooks():
        assert callable(pkgutil.resolve_name(target))

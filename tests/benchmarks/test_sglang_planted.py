"""The planted world: its numbers are true, and no way of decoding changes its text."""

import importlib.util
import pkgutil
from types import SimpleNamespace

import pytest
import torch

from benchmarks.sglang_planted.plugin import Planted
from benchmarks.sglang_planted.world import CLASSES, PlantedWorld, Stage

WORLD = PlantedWorld(vocabulary=4096, topk=4, texts=16, positions=4096)
STEPS, REQUESTS = 4, 3
STAGE = Stage(WORLD, REQUESTS, STEPS, "cpu")


@pytest.mark.parametrize("guess", range(WORLD.topk))
def test_guesses_are_right_as_often_as_they_say(guess):
    likely = WORLD.probabilities[..., guess].flatten()
    right = (WORLD.right == guess).flatten().float()
    for part in likely.argsort().chunk(8):
        expected, found = likely[part].mean(), right[part].mean()
        error = (expected * (1 - expected) / len(part)).sqrt()
        assert abs(found - expected) < 4 * error


def test_only_below_the_text_a_guess_is_right_and_the_target_says_it():
    STAGE.set_scene(torch.arange(REQUESTS), torch.tensor([7, 90, 4000]))
    drafted = [torch.zeros(REQUESTS, 1, dtype=torch.long)]
    for level in range(STEPS):
        _, tokens = STAGE.guesses(level, REQUESTS)
        families = tokens.view(REQUESTS, -1, WORLD.topk)
        on_text = families == STAGE.token[:, level, None, None]
        assert (on_text.sum((1, 2)) <= 1).all()
        assert (families[~on_text] % (CLASSES + 1) == CLASSES).all()
        chosen = torch.arange(WORLD.topk).expand(REQUESTS, -1)
        if level:
            chosen = on_text.flatten(1).long().argsort(descending=True)[:, : WORLD.topk]
        STAGE.keep(chosen)
        drafted.append(STAGE.token[:, level, None])
    said = STAGE.says(torch.cat(drafted, 1))
    assert torch.equal(said, STAGE.token)


def test_plain_decoding_says_the_same_text():
    STAGE.set_scene(torch.arange(REQUESTS), torch.tensor([7, 90, 4000]))
    texts, positions = torch.zeros(STEPS, dtype=torch.long), 7 + torch.arange(STEPS)
    assert STAGE.goes_on(texts, positions).tolist() == STAGE.token[0, :STEPS].tolist()
    assert WORLD.behind(0, 8, STEPS) == STAGE.token[0, :STEPS].tolist()


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


@pytest.fixture
def begun():
    """The plug-in, and a drafter that it has made room for."""
    planted = Planted(WORLD)
    drafter = SimpleNamespace(speculative_num_steps=STEPS, device="cpu")
    planted.allocate(lambda _: None, drafter)
    return planted, drafter


def predicted(**kwargs):
    return kwargs["target_predict"]


def test_hooks_plant_guesses_and_words(begun):
    planted, drafter = begun
    batch = running(5, 3, lengths=(9, 20))
    planted.run_batch(lambda *_: None, None, batch)
    planted.draft(lambda *_, **__: None, drafter, batch)
    hangs_on = torch.arange(-1, WORLD.topk).expand(2, -1)
    likely, tokens = torch.zeros(2, WORLD.topk), torch.zeros(2, WORLD.topk).long()
    seen = planted.select(
        lambda level, likely, tokens, *_: (likely, tokens, None, (0, 0, hangs_on)),
        *(0, likely, tokens, torch.empty(0), torch.empty(0), WORLD.topk),
    )
    assert torch.equal(seen[0][0], WORLD.probabilities[5, 10])
    root, target = torch.zeros(2, 1).long(), torch.zeros(2, WORLD.topk + 1).long()
    candidates = torch.cat([root, seen[1]], 1)
    said = planted.verify(predicted, candidates=candidates, target_predict=target)
    assert said[:, 0].tolist() == [int(WORLD.tokens[5, 10]), int(WORLD.tokens[3, 21])]


def test_a_step_that_drafts_nothing_sets_the_scene(begun):
    planted, _ = begun
    planted.run_batch(lambda *_: None, None, running(5))
    trivial = next(t for t in planted.hooks() if "_build_trivial" in t)
    planted.hooks()[trivial](lambda *_: None, None, running(5, lengths=(9,)))
    nothing = torch.zeros(1, 1, dtype=torch.int64)
    said = planted.verify(predicted, candidates=nothing, target_predict=nothing)
    assert said.tolist() == [[int(WORLD.tokens[5, 10])]]


@pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="sglang is not installed here"
)
def test_what_is_hooked_exists():
    for target in Planted(WORLD).hooks():
        assert callable(pkgutil.resolve_name(target))

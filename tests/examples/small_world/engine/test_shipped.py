"""The shipped weights: they load, and are as good as README.md says."""

import calendar
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from evict_profile.errors import ConfigError
from examples.small_world.drafting import unroll
from examples.small_world.engine.checkpoint import (
    ABOUT,
    TOKENIZER,
    WEIGHTS,
    load_checkpoint,
)
from examples.small_world.engine.corpus import Document, separate
from examples.small_world.training import routing_health
from tests.examples.small_world.engine.decoding import trained_target

SHIPPED = Path(__file__).parents[4] / "examples/small_world/stdlib"


@pytest.fixture(scope="module")
def shipped():
    return load_checkpoint(SHIPPED)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (ABOUT, b"{}", "it lacks draft_width, model, shape"),
        (ABOUT, b"[]", "'list' object"),
        (WEIGHTS, b"cut", "header"),
        (TOKENIZER, b"{", "EOF while parsing"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, reason):
    for path in SHIPPED.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(content)
    sentence = rf"{name}: is damaged.*{reason}.*fetch the world again, or train another"
    with pytest.raises(ConfigError, match=sentence):
        load_checkpoint(tmp_path)


@pytest.fixture(scope="module")
def ids(shipped):
    assert Document("calendar.py", "code", "").held_out
    code, _ = separate(Path(calendar.__file__).read_text())
    return torch.tensor([shipped.tokenizer.encode(code).ids[:256]])


@pytest.fixture(scope="module")
def target():
    return trained_target(SHIPPED)


@torch.no_grad()
def test_it_knows_code_it_has_not_seen(shipped, target, ids):
    """Far below the 6.9 nats of guessing; with no expert of a layer far ahead."""
    found = target(ids)
    assert F.cross_entropy(found.logits[0, :-1], ids[0, 1:]).item() < 3.5
    health = routing_health(found.routes, 0.0, shipped.shape.experts)
    assert health.peak < 8.0


@torch.no_grad()
def test_its_drafts_are_often_right(shipped, target, ids):
    found = target(ids)
    embedded = F.embedding(ids[:, 1:], target.embedding)
    feature = shipped.drafter.feature([s[:, :-1] for s in found.features])
    for step, out in enumerate(unroll(shipped.drafter, embedded, feature, 4)):
        drafted = shipped.drafter.logits(out, target.head).argmax(dim=-1)
        wanted = found.logits[:, 1:].argmax(dim=-1)
        agreed = (drafted == wanted)[:, step:].float().mean().item()
        assert agreed > 0.45


def test_it_is_small():
    """At most 20 MB in the repository."""
    sizes = [(SHIPPED / name).stat().st_size for name in (WEIGHTS, TOKENIZER)]
    assert sum(sizes) <= 20_000_000

"""A fingerprint changes with what matters, and with nothing else."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.config import load_model
from evict_profile.records import differences, digest, replace
from evict_profile.sweep.session import fingerprint

FACTS = {"engine": "paper", "layers": 2}
MODEL = load_model("tiny")

facts = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5))


@given(facts)
def test_digest_ignores_the_order_of_keys(content: dict[str, object]) -> None:
    """The same facts in another order have the same digest."""
    backwards = dict(reversed(list(content.items())))
    assert digest(backwards) == digest(content)


@given(facts, facts)
def test_digests_tell_facts_apart(
    one: dict[str, object], two: dict[str, object]
) -> None:
    """Equal digests mean equal facts."""
    assert (digest(one) == digest(two)) == (one == two)


def test_digest_is_of_compact_utf8_json() -> None:
    """Anyone can compute it: sha256sum of compact, key-sorted JSON."""
    by_hand = hashlib.sha256('{"a":"ä","b":1}'.encode()).hexdigest()
    assert digest({"b": 1, "a": "ä"}) == by_hand


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 1024},
        {"num_layers": 5},
        {"moe": replace(MODEL.moe, top_k=5)},
        {"attention": replace(MODEL.attention, sliding_window=64)},
    ],
)
def test_another_shape_is_another_fingerprint(change: dict[str, object]) -> None:
    """Any size of the model counts."""
    other = fingerprint(FACTS, replace(MODEL, **change))
    assert differences(other, fingerprint(FACTS, MODEL))[0].startswith("model_sha256")


def test_dtype_is_named() -> None:
    """Another dtype differs as such, not only as a digest."""
    other = fingerprint(FACTS, replace(MODEL, dtype="float32"))
    phrases = differences(other, fingerprint(FACTS, MODEL))
    assert "dtype: float32 here, bfloat16 there" in phrases


def test_where_a_shape_was_found_does_not_matter() -> None:
    """The source of a shape is no part of what was measured."""
    other = fingerprint(FACTS, replace(MODEL, source="elsewhere"))
    assert differences(other, fingerprint(FACTS, MODEL)) == []


def test_facts_of_the_runner_are_kept() -> None:
    """What only the runner sees stands beside the model's facts."""
    assert FACTS.items() <= fingerprint(FACTS, MODEL).items()


@given(facts)
def test_nothing_differs_from_itself(content: dict[str, object]) -> None:
    """A fingerprint agrees with itself."""
    assert differences(content, dict(content)) == []


def test_differences_name_both_sides() -> None:
    """Changed, added and missing facts, in the order of their names."""
    mine, theirs = {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 4, "d": 5}
    assert differences(mine, theirs) == [
        "b: 2 here, 4 there",
        "c: 3 here, absent there",
        "d: absent here, 5 there",
    ]

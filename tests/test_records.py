"""Files become mappings and mappings dataclasses, or one sentence."""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from evict_profile.errors import ConfigError, DataError
from evict_profile.records import differences, digest, parse, read_mapping


@dataclass(frozen=True)
class Part:
    """A field of fields."""

    size: int
    kind: Literal["gqa", "mla"] | int = "gqa"

    def __post_init__(self):
        if self.size < 1:
            raise ValueError("size must be at least 1")


@dataclass(frozen=True)
class Whole:
    """What is parsed here."""

    parts: tuple[Part, ...]
    share: float = 0.0
    facts: dict[str, Any] | None = None


@pytest.mark.parametrize("name", ["deep.json", "deep.yaml"])
def test_a_file_too_deep_to_read_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text("[" * 2_000)
    with pytest.raises(ConfigError, match=rf"{name}: is not valid"):
        read_mapping(path)


def test_lists_become_tuples_and_whole_numbers_become_floats():
    """As the annotations say; free facts stay as they are."""
    made = parse(Whole, {"parts": [{"size": 3}], "share": 1, "facts": {"a": [1]}}, "x")
    assert made == Whole((Part(3),), 1.0, {"a": [1]})


class Sparse(Struct, frozen=True, omit_defaults=True):
    """A record that leaves its defaults out."""

    low: float | None = None
    inner: "Sparse | None" = None


def test_a_default_may_be_written_out():
    """Also of a record that leaves its defaults out, at any depth."""
    given = {"low": None, "inner": {"low": None}}
    assert parse(Sparse, given, "x") == Sparse(None, Sparse())
    with pytest.raises(ConfigError, match=r"unknown key 'inner\.lwo'.*'low'"):
        parse(Sparse, {"inner": {"lwo": None}}, "x")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"parts": [{"size": "3"}]},
            r"x: parts\[0\].size: Expected `int`.*\(got '3'\)",
        ),
        ({"parts": [{"size": 3.5}]}, r"parts\[0\].size: Expected `int`"),
        ({"parts": [{"size": True}]}, r"parts\[0\].size: Expected `int`"),
        ({"parts": [{}]}, r"key 'parts\[0\].size' is missing; add it"),
        ({}, r"key 'parts' is missing; add it"),
        (
            {"parts": [], "prats": 1},
            r"unknown key 'prats'; remove it, or write 'parts'",
        ),
        (
            {"parts": [{"size": 1, "a": 1}]},
            r"'parts\[0\].a'; .* write one of size, kind",
        ),
        ({"prats": []}, r"key 'parts' is missing; add it"),
        ({"facts": {"a": 1}}, r"key 'parts' is missing; add it"),
        ({"parts": [{"size": 0}]}, r"parts\[0\]: size must be at least 1"),
        ({"parts": [{"size": 1, "kind": "x"}]}, r"one of 'gqa', 'mla' \(got 'x'\)"),
        ({"parts": [], "share": "much"}, r"share: Expected `float`.*\(got 'much'\)"),
    ],
)
def test_a_mistake_is_named_with_its_field(content, sentence):
    """One sentence: the source, the field, what is wrong, what was given."""
    with pytest.raises(ConfigError, match=sentence):
        parse(Whole, content, "x")


def test_the_error_is_of_the_kind_that_is_asked_for():
    with pytest.raises(DataError):
        parse(Whole, {}, "x", DataError)


def test_extra_keys_are_left_aside_where_that_is_asked_for():
    assert parse(Whole, {"parts": [], "more": 1}, "x", extra_keys=True) == Whole(())
    with pytest.raises(ConfigError, match="'parts' is missing; add it"):
        parse(Whole, {"more": 1}, "x", extra_keys=True)


facts = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5))


@given(facts, facts)
def test_digests_tell_facts_apart(one, two):
    """Equal digests mean equal facts, in whatever order their keys are."""
    assert (digest(one) == digest(two)) == (one == two)
    assert digest(dict(reversed(list(one.items())))) == digest(one)


def test_digest_is_of_compact_utf8_json():
    """Anyone can compute it: sha256sum of compact, key-sorted JSON."""
    by_hand = hashlib.sha256('{"a":"ä","b":1}'.encode()).hexdigest()
    assert digest({"b": 1, "a": "ä"}) == by_hand


@given(facts)
def test_nothing_differs_from_itself(content):
    assert differences(content, dict(content)) == []


def test_differences_name_both_sides():
    """Changed, added and missing facts, in the order of their names."""
    mine, theirs = {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 4, "d": 5}
    assert differences(mine, theirs) == [
        "b: 2 here, 4 there",
        "c: 3 here, absent there",
        "d: absent here, 5 there",
    ]

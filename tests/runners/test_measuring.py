"""What every runner answers alike."""

from dataclasses import fields

import pytest

from evict_profile.cells import Sample
from runners.measuring import Reading, check_shape, sample, source_digest
from runners.protocol import Refusal

READING = Reading(3.0, 4.0, 5.0)


def test_a_sample_has_what_the_toolkit_adds_nothing_to():
    """Every field but those of the round, which the toolkit knows."""
    answer = sample(11, READING, 4, [6, 9], tier=8, backend="graph")
    assert answer.keys() < {field.name for field in fields(Sample)} | {"seed"}
    assert (answer["union_low"], answer["observed_union"], answer["union_high"]) == (
        6,
        7.5,
        9,
    )


def test_the_ends_of_a_model_have_no_union():
    answer = sample(11, READING, 4, [])
    assert answer["observed_union"] != answer["observed_union"]
    assert (answer["union_low"], answer["union_high"]) == (0, 0)


def test_another_model_is_refused_by_what_differs():
    sizes = {"experts": (8, 8), "top-k": (2, 4)}
    with pytest.raises(Refusal, match=r"top-k: 2 .* 4 in the engine; do this"):
        check_shape(sizes, "world", "the engine", "do this")


def test_the_digest_follows_the_code(tmp_path):
    module = tmp_path / "a.py"
    module.write_text("1")
    before = source_digest(str(module))
    assert source_digest(str(module)) == before
    (tmp_path / "b.py").write_text("2")
    assert source_digest(str(module)) != before

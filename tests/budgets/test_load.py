"""Recordings that are read, alone and together, and those that are refused."""

import pytest
from pandas.testing import assert_frame_equal

from evict_profile.budgets.load import joined, load_budgets, record_of
from evict_profile.budgets.schema import MASS, NONE, STATIC
from evict_profile.errors import ConfigError, TraceError
from evict_profile.records import replace
from tests.budgets.synthetic import (
    ABOUT,
    LAYERS,
    both,
    rows,
    setting,
    table_of,
    typical,
    write,
)

PLAIN, MASS_8, LAYERS_8 = setting(NONE), setting(MASS, 8, 40.0), setting(LAYERS, 8)
STATIC_8 = setting(STATIC, 8, 10.0)
SETTINGS = [PLAIN, MASS_8, LAYERS_8]


def good(**changed):
    """A prompt under three settings; the first row of `mass` may be changed."""
    found = [row for each in SETTINGS for row in both(each)]
    first = next(row for row in found if row["rule"] == MASS)
    first.update(changed)
    return table_of(found, SETTINGS)


def test_a_recording_is_read_from_its_file(tmp_path):
    """Sums over the tokens of each step, prompts counted from 0."""
    found = load_budgets(write(tmp_path / "made.parquet", good(kl=[0.25, 0.5])))
    assert found.settings == tuple(SETTINGS)
    assert [each.name for each in found.settings] == ["none", "mass 8", "layers 8"]
    assert found.prompts == (("code", 0),)
    assert found.about == ABOUT
    mass = found.steps[found.steps["setting"] == 1]
    assert mass["kl"].tolist() == [0.75, 0.0, 0.0, 0.0]
    assert mass["agrees"].tolist() == mass["plain_loss"].tolist() == [2.0] * 4
    assert mass["given"].tolist() == [False, False, True, True]


def test_workloads_are_taken_apart():
    """Their prompts are counted anew; what is not there is named."""
    whole = record_of(typical(prompts=2), "synthetic")
    prose = whole.only(["prose"])
    assert prose.prompts == (("prose", 0), ("prose", 1))
    assert set(prose.steps["prompt"]) == {0, 1}
    assert len(prose.steps) < len(whole.steps)
    with pytest.raises(TraceError, match="no workload poems; it holds code, prose"):
        whole.only(["poems"])


def test_halves_share_no_prompt_and_are_the_whole_together():
    whole = record_of(typical(prompts=3), "synthetic")
    first, second = (whole.half(index) for index in (0, 1))
    assert sorted(first.prompts + second.prompts) == list(whole.prompts)
    assert len(first.steps) + len(second.steps) == len(whole.steps)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"position": -1}, "position must be at least 0"),
        ({"context": -1}, "context must be at least 0"),
        ({"committed": 0}, "committed must be at least 1"),
        ({"verified": 1}, "verified must be at least committed"),
        ({"union": 9.0}, "union is more than the budget allows"),
        ({"union": 33.0}, "union must be within 0 and the model's 32 experts"),
        ({"union": float("nan")}, "union must be within 0"),
        ({"kl": [0.1]}, "kl must have one entry a committed token"),
        ({"loss": [1.0, float("nan")]}, "loss must be finite and at least 0"),
        ({"kl": [0.1, -0.5]}, "kl must be finite and at least 0"),
        ({"position": 2}, "this position of this text is there twice"),
        ({"budget": 9}, "settings have no such rule and budget"),
    ],
)
def test_the_first_row_that_cannot_be_is_named(changed, says):
    with pytest.raises(
        TraceError,
        match=r"synthetic: row \d+ \(rule mass, budget [89], workload code, ",
    ) as no:
        record_of(good(**changed), "synthetic")
    assert says in str(no.value)


def test_all_columns_are_needed():
    with pytest.raises(TraceError, match="has no column kl, loss"):
        record_of(good().drop_columns(["kl", "loss"]), "synthetic")


def with_setting(**changed):
    """`mass 8` stated otherwise than it is recorded."""
    stated = [PLAIN, replace(MASS_8, **changed), LAYERS_8]
    return table_of([row for each in SETTINGS for row in both(each)], stated)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rule": "dice"}, "'dice 8' is of no rule among none, mass"),
        ({"per_layer": (8, 8)}, "has budgets of 2 layers, and the model 4"),
        ({"per_layer": (33, 1, 1, 1)}, "a layer's budget outside 1 and 32"),
        ({"per_layer": (8, 8, 8, 9)}, "whose mean is not 8"),
        ({"routing_us": float("inf")}, "has a routing_us that is no time"),
        ({"rule": NONE}, "'none' has a budget, 8 of 32 experts"),
    ],
)
def test_settings_must_be_ones(changed, says):
    with pytest.raises(TraceError) as no:
        record_of(with_setting(**changed), "synthetic")
    assert says in str(no.value)


def test_routing_may_spare_time():
    """Fewer experts may be ranked faster than all."""
    found = record_of(with_setting(routing_us=-20.0), "synthetic")
    assert found.settings[1].routing_us == -20.0


def test_each_setting_stands_once_and_none_is_one():
    with pytest.raises(TraceError, match="must have 'none' and every other setting"):
        record_of(table_of(both(MASS_8), [MASS_8]), "synthetic")
    with pytest.raises(TraceError, match="has none, mass 8, mass 8; record"):
        record_of(table_of(both(PLAIN), [PLAIN, MASS_8, MASS_8]), "synthetic")


def test_every_setting_has_the_same_prompts():
    found = both(PLAIN) + rows(MASS_8, given=False)
    with pytest.raises(TraceError, match="'mass 8' lacks given text of prompt 0 of co"):
        record_of(table_of(found, [PLAIN, MASS_8]), "synthetic")


def test_the_model_must_be_named():
    """A budget is one of so many experts."""
    bare = table_of(both(PLAIN), [PLAIN], replace(ABOUT, layers=0))
    with pytest.raises(TraceError, match="must say layers, experts and top_k"):
        record_of(bare, "synthetic")


def test_metadata_must_be_that_of_budgets():
    with pytest.raises(TraceError, match="does not say that it is a budget recording"):
        record_of(good().replace_schema_metadata({}), "synthetic")
    damaged = table_of(both(PLAIN), [PLAIN], about={"layers": "four"})
    with pytest.raises(ConfigError, match=r"about\.layers"):
        record_of(damaged, "synthetic")


def recorded(*settings, prompts=2, reference_us=100.0):
    """Some prompts under some settings."""
    found = [
        row
        for each in settings
        for prompt in range(prompts)
        for row in both(each, prompt, kl=len(each.rule) / 8.0)
    ]
    asked = {"prompts": prompts, "rules": [each.rule for each in settings]}
    about = replace(ABOUT, reference_us=reference_us)
    return table_of(found, settings, about, recorded=asked)


def record(*settings, reference_us=100.0):
    return record_of(recorded(*settings, reference_us=reference_us), "synthetic")


def test_two_recordings_are_as_one():
    """The steps of each setting once, whichever of them both have."""
    one = joined(record(PLAIN, MASS_8), record(STATIC_8, PLAIN, MASS_8))
    whole = record(PLAIN, MASS_8, STATIC_8)
    assert one.settings == whole.settings
    assert_frame_equal(one.steps, whole.steps)


@pytest.mark.parametrize(("there_us", "routing_us"), [(200.0, 5.0), (0.0, 10.0)])
def test_times_are_told_by_the_first_ones_reference(there_us, routing_us):
    """The other's machine was twice as slow then; without a reference, as they are."""
    slow = record(PLAIN, STATIC_8, reference_us=there_us)
    one = joined(record(PLAIN, MASS_8), slow)
    assert [each.routing_us for each in one.settings] == [0.0, 40.0, routing_us]


def test_files_are_read_together_if_they_are_of_the_same_prompts(tmp_path):
    """What differs is named; rules may."""
    first = write(tmp_path / "a.parquet", recorded(PLAIN, MASS_8))
    second = write(tmp_path / "b.parquet", recorded(PLAIN, STATIC_8))
    names = [each.name for each in load_budgets(first, second).settings]
    assert names == ["none", "mass 8", "static 8"]
    longer = write(tmp_path / "c.parquet", recorded(PLAIN, STATIC_8, prompts=3))
    sentence = r"c.parquet: is not of the prompts of .*a.parquet \(prompts: 3 here, 2"
    with pytest.raises(TraceError, match=sentence):
        load_budgets(first, longer)

"""A served table says what was served, and how sure it is of the rest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.served.growth import OWN_ERROR, OWN_EXPONENT
from evict_profile.served.make import served_table
from evict_profile.served.table import ServedTable, Shape
from tests.served.runs import rows, run

FLAT = "4,0,10|4,3,20|64,0,10|64,3,20"
GROWING = "1,0,10|1,3,20|4,0,12|4,3,24|16,0,20|16,3,40"
RATIOS = st.floats(1.0, 3.9)


def made(runs, **options):
    own = rows(runs) if isinstance(runs, str) else runs
    return served_table(own, {}, "m", "g", **options)


def ratio(table, batch, width, **place):
    return table.ratio(batch, width, width - 1, **place)


@pytest.mark.parametrize(("text", "batch"), [(FLAT, 8), (GROWING, 2), (GROWING, 8)])
def test_between_batches_of_one_ratio_it_is_that_ratio(text, batch):
    """At constant K, whatever the steps do."""
    found = ratio(made(text), batch, 4)
    assert found.value.value == pytest.approx(2.0)
    assert found.basis == "other batch"


@given(RATIOS, RATIOS, st.integers(2, 63))
def test_between_two_batches_it_lies_between_them(one, other, batch):
    table = made(f"1,0,10|1,3,{10 * one}|64,0,30|64,3,{30 * other}")
    ends = [ratio(table, each, 4).value for each in (1, 64)]
    found = ratio(table, batch, 4).value
    low, high = sorted(each.value for each in ends)
    assert low - 1e-9 <= found.value <= high + 1e-9
    assert found.low <= min(each.low for each in ends)
    assert found.high >= max(each.high for each in ends)


@pytest.mark.parametrize("batch", [1, 3, 65, 1000])
def test_beyond_the_served_batches_nothing_is_known(batch):
    with pytest.raises(DataError, match=r"was not served.*\(4, 64\); serve plain"):
        ratio(made(FLAT), batch, 4)


@given(st.floats(5.0, 50.0), RATIOS, RATIOS)
def test_at_a_served_setting_it_is_the_runs(plain, three, seven):
    table = made(f"2,0,{plain}|2,3,{plain * three}|2,7,{plain * seven}")
    assert ratio(table, 2, 1).value.value == 1.0
    for width, known in ((4, three), (8, seven)):
        found = ratio(table, 2, width)
        assert found.basis == "measured"
        assert found.value.value == pytest.approx(known)
        [base, *_] = table.served_at(2)
        [own] = [each for each in table.served_at(2) if each.width == width]
        assert found.value.high == pytest.approx(max(own.ratio_to(base).high, 1.0))


def test_its_interval_at_a_served_setting_is_that_of_the_runs():
    """No other error is added."""
    twelve = "|".join(f"16,0,{10 + n / 50}|16,3,{19 + n / 50}" for n in range(6))
    found = ratio(made(twelve), 16, 4).value
    assert found.high / found.low < 1.03


def test_below_the_one_k_that_ran_it_may_be_the_line_or_no_change():
    """Where drafting takes its time once a step, K = 2 takes it all."""
    found = ratio(made("1,0,10|1,6,20"), 1, 3)
    assert found.basis == "other K"
    assert found.value.value == pytest.approx(2.0 * (3 / 7) ** OWN_EXPONENT)
    line = 1.0 + (2.0 - 1.0) * 2 / 6
    assert found.value.low < line
    assert found.value.high >= ratio(made("1,0,10|1,6,20"), 1, 7).value.high


def test_above_the_one_k_that_ran_it_grows_as_other_servers_do():
    found = ratio(made("1,0,10|1,3,20"), 1, 8).value
    assert found.value == pytest.approx(2.0 * 2**OWN_EXPONENT)
    assert math.log(found.high / found.value) > OWN_ERROR


@pytest.mark.parametrize(
    ("text", "width", "value"),
    [("1,0,10|1,3,20|1,7,18", 16, 1.8), ("1,0,10|1,1,11|1,2,15|1,15,15", 5, 1.5)],
)
def test_several_k_carry_to_others_without_falling(text, width, value):
    """Beyond two K that fall, and between the two that a K lies between."""
    assert ratio(made(text), 1, width).value.value == pytest.approx(value)


@given(st.floats(1.0, 3.0), st.integers(2, 20))
def test_no_step_is_below_plain_decoding(three, width):
    assert ratio(made(f"1,0,10|1,3,{10 * three}"), 1, width).value.value >= 1.0
    several = made(f"1,0,10|1,3,{10 * three}|1,7,{12 * three}")
    assert ratio(several, 1, width).value.value >= 1.0


def test_a_step_below_plain_within_noise_stays_as_it_was_measured():
    """18.57 ms beside 20.00 ms; what did not run is no faster than plain."""
    table = made("1,0,20|1,3,18.57")
    assert ratio(table, 1, 4).value.value == pytest.approx(18.57 / 20)
    assert ratio(table, 1, 3).value.value >= 1.0


def test_a_tree_says_nothing_of_a_chain():
    runs = [run(1, 0, 10), replace(run(1, 3, 15), width=16, topk=4)]
    table = made(runs)
    assert table.ratio(1, 16, 3).value.value == pytest.approx(1.5)
    with pytest.raises(DataError, match="trees ran at batch 1"):
        table.ratio(1, 4, 3)


def test_k_against_k_needs_no_plain_run():
    table = made("1,3,20|1,5,24")
    assert table.reference(1).drafts == 3
    assert ratio(table, 1, 6).value.value == pytest.approx(1.2)
    with pytest.raises(DataError, match="no run of plain decoding"):
        ratio(table, 1, 1)


def test_contexts_are_an_axis():
    """512 and 8,192 tokens are no step at 4,352."""
    runs = [
        run(1, k, step, context=context)
        for context, plain, drafting in ((512.0, 10, 15), (8192.0, 20, 50))
        for k, step in ((0, plain), (3, drafting))
    ]
    table = made(runs)
    assert ratio(table, 1, 4).value.value == pytest.approx(1.5)
    assert ratio(table, 1, 4, context=8000).value.value == pytest.approx(2.5)
    with pytest.raises(
        DataError, match="2048 was not served; there are runs at 512, 8"
    ):
        ratio(table, 1, 4, context=2048)


@given(st.floats(0.01, 0.9))
def test_a_linear_shape_carries_one_k_to_all_others(slope):
    """Own steps of the same law come out exactly."""
    widths = tuple(range(1, 17))
    growth = (tuple(1.0 + slope * (n - 1) for n in widths),)
    own = f"4,0,10|4,3,{10 * (1 + 3 * slope)}"
    table = made(own, shape=Shape("linear", (4,), widths, growth))
    for width in (2, 8, 16):
        found = ratio(table, 4, width).value.value
        assert found == pytest.approx(1.0 + slope * (width - 1))


def test_a_shape_is_read_at_its_nearest_batch():
    shape = Shape("t", (1, 64), (1, 4), ((1.0, 1.5), (1.0, 3.0)))
    assert shape.at(2, 4) == 1.5
    assert shape.at(32, 4) == 3.0
    assert shape.at(1, 2) == pytest.approx(1.0 + 0.5 / 3)


def test_it_is_saved_and_read_whole(tmp_path):
    runs = [run(1), run(1, 3, 20.0, accept_lengths={1: 1.8, 3: 2.6})]
    table = served_table(runs, {"a": "states no step"}, "m", "g")
    table.save(tmp_path / "t.json")
    read = ServedTable.load(tmp_path / "t.json")
    assert read.runs == table.runs and read.left_out == table.left_out
    assert read.sha256 == table.sha256
    assert read.path == tmp_path / "t.json"


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "t.json"
    made(FLAT).save(path)
    path.write_text(path.read_text().replace("20000.0", "15000.0"))
    with pytest.raises(DataError, match="does not match its sha256"):
        ServedTable.load(path)

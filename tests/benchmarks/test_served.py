"""The record of served runs: what is fitted to it, and what the pages took from it."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.served import __main__ as served
from benchmarks.served import fits, judge, record
from evict_profile.advice.acceptance import of_yaml
from evict_profile.io import data_root


@pytest.fixture(scope="module")
def asked():
    return served.questions()


@pytest.fixture(scope="module")
def found(asked):
    return served.findings(asked)


def of(server, widths, ratios, text="a", **columns):
    """Rows of a server over plain decoding."""
    x, y = np.log(widths), np.log(ratios)
    rows = {"server": server, "group": f"{server}/{text}", "width": widths}
    rows |= {"known": 1.0, "topk": 1, "ratio": ratios, "x": x, "y": y} | columns
    return pd.DataFrame(rows)


def test_constants_are_the_fitted_ones_and_aims_are_met(found):
    assert list(served.faults(found)) == []


def test_another_constant_is_a_fault(found, monkeypatch):
    monkeypatch.setattr(served.growth, "EXPONENT", 0.39)
    [fault] = served.faults(found)
    assert fault == "growth.EXPONENT is 0.39, and the fit 0.37"


def test_a_missed_aim_is_a_fault_unless_it_is_listed(found):
    worse = found | {"plain and one K, settled": 59.0, "no run, surely wrong": 9.0}
    assert list(served.faults(worse)) == [
        "plain and one K, settled: 59.0 for an aim of 60.0"
    ]


def test_listed_misses_are_missed(found):
    limits = {name: (limit, more) for name, limit, more in served.AIMS}
    for name in served.MISSED:
        limit, more = limits[name]
        assert found[name] < limit if more else found[name] > limit


def test_the_file_of_findings_is_what_the_benchmark_finds(found):
    """README, the claims and the page read that file (tests/test_claims.py)."""
    kept = data_root() / "docs/research/data/served.json"
    assert found == pytest.approx(json.loads(kept.read_text()), abs=0.11)


def test_every_public_row_is_judged_or_left_out(found):
    rows = sum(
        len(pd.read_csv(record.DATA / f"{name}.csv", comment="#"))
        for name in ("specbundle", "served-pairs", "new-2026")
    )
    left_out = sum(v for k, v in found.items() if k.startswith("left out"))
    assert found["no run, n^p, rows"] + left_out == rows


def test_no_row_takes_more_than_n_plain_steps(asked):
    rows = asked["no run"]
    assert (rows["ratio"] <= rows["width"]).all()


def test_prefill_does_not_get_faster_by_drafting():
    """A text at the fastest plain rate keeps its ratio; others' steps grow less."""
    rows = record._specbundle()
    published = pd.read_csv(record.DATA / "specbundle.csv", comment="#")
    fastest = published.groupby("model")["plain_tok_s"].transform("max")
    at_top = published["plain_tok_s"] == fastest
    known = published["step_over_plain"]
    assert rows["ratio"][at_top].to_numpy() == pytest.approx(known[at_top])
    gains = ~at_top & (published["speedup"] > 1.0)
    assert (rows["ratio"][gains] < known[gains]).all()


def test_a_planted_exponent_is_found_beside_one_odd_server():
    widths = np.array([2.0, 4.0, 8.0])
    rows = [of(name, widths, widths**0.4) for name in "abc"]
    rows.append(of("odd", widths, widths**0.9))
    assert fits.exponent(pd.concat(rows, ignore_index=True)) == pytest.approx(0.4)


def test_a_server_with_many_rows_weighs_ten():
    many = of("many", np.full(30, 4.0), np.full(30, 2.0))
    few = of("few", np.full(5, 4.0), np.full(5, 2.0))
    weight = fits.weights(pd.concat([many, few], ignore_index=True))
    assert weight[:30].sum() == pytest.approx(10.0)
    assert weight[30:].sum() == pytest.approx(5.0)


@pytest.mark.parametrize("fit", [fits.power, fits.one_parameter])
def test_a_server_does_not_teach_what_judges_it(fit):
    widths = np.array([2.0, 4.0, 8.0])
    others = [of(name, widths, widths**0.4) for name in "ab"]
    found = []
    for own in (widths**0.1, widths**0.9):
        rows = pd.concat([of("judged", widths, own), *others], ignore_index=True)
        found.append(fits.held_out(rows, fit).iloc[:3])
    pd.testing.assert_frame_equal(*found)


@given(exponent=st.floats(-0.5, 1.0), taught=st.floats(1.0, 4.0))
def test_one_run_of_a_power_law_gives_all_others(exponent, taught):
    widths = np.array([2.0, 3.0, 5.0, 9.0])
    ratio = taught * widths**exponent
    rows = pd.concat(
        [of(name, widths, ratio, table=np.nan) for name in "ab"], ignore_index=True
    )
    pairs = fits.from_one(rows)
    assert len(pairs) == 2 * 4 * 3
    assert fits.power(pairs)(pairs) == pytest.approx(pairs["ratio"])


def test_pairs_are_of_chains_alone():
    rows = of("a", [2.0, 4.0, 6.0], [1.2, 1.5, 1.8], table=np.nan)
    rows.loc[2, "topk"] = 4
    assert set(fits.from_one(rows)["width"]) == {2.0, 4.0}


def test_a_power_law_lies_between_its_ends():
    widths = np.array([2.0, 4.0, 8.0])
    assert fits.between(of("a", widths, widths**0.4))["off"].to_numpy() == (
        pytest.approx([0.0])
    )


def test_neighbours_surround_a_batch_of_one_server_and_draft():
    for ends, asked in fits.neighbours():
        (one, other) = ends
        assert one["batch"] < asked["batch"] < other["batch"]
        assert one["server"] == asked["server"] == other["server"]
        assert one["width"] == asked["width"] == other["width"]


def answered(accepted, ratio, low, high):
    one = {"server": "a", "accepted": accepted, "ratio": ratio}
    return judge.coverage(pd.DataFrame([one | {"low": low, "high": high}]))


@pytest.mark.parametrize(
    ("low", "high", "settled", "wrong"),
    [(1.2, 1.8, 100.0, 0), (1.2, 2.5, 0.0, 0), (2.1, 2.5, 100.0, 1)],
)
def test_an_answer_is_wrong_if_it_settles_on_the_other_side(low, high, settled, wrong):
    """Two tokens in 1.5 plain steps: drafting gains."""
    found = answered(2.0, 1.5, low, high)
    assert (found["settled"], found["surely wrong"]) == (settled, wrong)


def test_a_choice_by_what_was_served_loses_nothing(asked):
    assert judge.loss(asked["no run"], "ratio") == 0.0


def test_never_drafting_loses_what_the_best_draft_gains():
    rows = of("a", [2.0, 4.0], [1.0, 2.0], accepted=[1.25, 2.4], plain=9.0)
    assert judge.loss(rows, "plain") == pytest.approx(20.0)


def test_the_example_has_the_medians_of_its_texts():
    rows = pd.read_csv(record.DATA / "specbundle.csv", comment="#")
    own = rows[(rows["model"] == "Qwen3-30B-A3B-Instruct-2507") & (rows["topk"] == 1)]
    medians = own.groupby("steps")[["accept_length", "speedup"]].median()
    found = of_yaml(data_root() / "examples/specbundle-qwen3-30b-a3b.yaml")
    assert found.committed[1:] == pytest.approx(medians["accept_length"], abs=5e-4)
    assert list(found.served.values()) == pytest.approx(medians["speedup"], abs=5e-4)

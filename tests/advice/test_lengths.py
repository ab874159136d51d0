"""Some lengths give others, by a rule of published curves."""

import csv

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.acceptance import acceptance_of
from evict_profile.advice.lengths import REJECTION_GROWTH, of_lengths, of_rate, of_some
from evict_profile.errors import DataError
from evict_profile.io import data_root
from evict_profile.records import replace


class TestFitted:
    """Lengths of all K from those of some."""

    def test_the_longest_that_was_stated_is_kept(self):
        assert of_rate(0.7).longest_stated is None
        assert of_lengths({1: 1.8, 3: 2.5}, "").longest_stated == 3
        assert of_some({2: 2.0, 5: 3.0}, "").longest_stated == 5

    @given(st.floats(0.0, 1.0), st.integers(1, 16))
    def test_lengths_of_a_rate_follow_from_one(self, rate, drafts):
        whole = of_rate(rate).committed
        found = of_some({drafts: whole[drafts]}, "")
        assert found.committed == pytest.approx(whole, rel=1e-3)

    def test_stated_lengths_stay_as_they_are(self):
        [found] = acceptance_of("3:3.01,6:3.77,8:3.47")
        assert found.levels.tolist() == [*range(17)]
        assert found.committed[[3, 6, 8]].tolist() == [3.01, 3.77, 3.47]
        assert not found.half_width[[0, 3, 6, 8]].any()
        assert 3.01 < found.committed[4] < found.committed[5] < 3.77

    def test_a_longer_k_than_is_usual_gives_all_up_to_it(self):
        [found] = acceptance_of("20:3.4")
        assert found.levels.tolist() == [*range(21)]
        assert found.committed[20] == 3.4
        assert (np.diff(found.committed) >= 0.0).all()

    def test_a_k_farther_from_the_stated_has_a_wider_interval(self):
        half = of_some({4: 2.9}, "").half_width
        assert (np.diff(half[4:]) > 0.0).all() and (np.diff(half[1:5]) < 0.0).all()

    def test_published_lengths_lie_in_the_intervals(self):
        """One length of each curve is stated, in turn; a file has those from K = 3."""
        stated, drafts, error, half = np.array([*errors_of_fits()]).T
        assert len(error) == 1648
        assert (error <= half).mean() == pytest.approx(0.96, abs=0.005)
        docs = data_root() / "docs"
        _, *rows = csv.reader((docs / "research/data/fitted-lengths.csv").open())
        found = []
        for k in (1, 2, 4, 5, 6, 7, 8):
            here = (stated == 3) & (drafts == k)
            shares = *np.quantile(error[here], [0.5, 0.95]), half[here][0]
            numbers = (f"{100.0 * value:.1f} %" for value in shares)
            found.append([str(k), str(here.sum()), *numbers])
        assert rows == found
        page = (docs / "decide/draft-length.md").read_text()
        shown = [row for row in rows if f"\n| {' | '.join(row)} |\n" in page]
        assert [row[0] for row in shown] == ["1", "5", "7", "8"]


def errors_of_fits():
    """The stated K, another K, its |log error| and half of its interval."""
    for curve in published_curves():
        for stated, length in curve.items():
            found = of_some({stated: length}, "")
            for drafts in curve.keys() - {stated}:
                error = abs(np.log(curve[drafts] / found.committed[drafts]))
                yield stated, drafts, error, found.half_width[drafts]


def published_curves():
    """Accepted lengths by K: InferenceX's, shares by position, SpecBundle's chains."""
    data = data_root() / "benchmarks/served/data"
    golden = pd.read_csv(data / "inferencex-golden-al.csv", skiprows=1)
    for row in golden.filter(regex=r"^K\d").to_numpy():
        yield dict(enumerate(row.tolist(), 1))
    for text in pd.read_csv(data / "acceptance-per-position.csv").iloc[:, 5]:
        if "hazards" not in text:
            shares = [*map(float, text.split())]
            yield dict(enumerate(1.0 + np.cumsum(shares), 1))
    rows = pd.read_csv(data / "specbundle.csv", comment="#").query("topk == 1")
    for _, runs in rows.groupby(["model", "dataset", "draft", "batch_size"]):
        yield dict(zip(runs["steps"], runs["accept_length"], strict=True))


class TestRate:
    def test_the_rejection_of_a_rate_grows_by_position(self):
        """1 - (1 - p) 1.09^(k - 1), given the drafts before."""
        chances = np.diff(of_rate(0.8).committed)
        chances[1:] /= chances[:-1].copy()
        grown = (1.0 - chances)[1:] / (1.0 - chances)[:-1]
        assert grown == pytest.approx(REJECTION_GROWTH)

    @given(st.floats(0.0, 1.0))
    def test_a_rate_gives_no_chance_below_none(self, rate):
        committed = of_rate(rate).committed
        assert (np.diff(committed) >= 0.0).all()
        assert committed[1] == pytest.approx(1.0 + rate)


class TestByBatch:
    def lengths(self, *batches):
        each = {b: of_some({3: length}, "log") for b, length in batches}
        return replace(of_some({3: 2.0}, "log"), by_batch=each)

    def test_a_batch_that_was_measured_has_its_own_length(self):
        found = self.lengths((1, 2.8), (16, 2.2))
        assert found.at(1).committed[3] == 2.8 and found.at(16).committed[3] == 2.2

    @given(one=st.floats(1.2, 3.8), other=st.floats(1.2, 3.8), batch=st.integers(3, 15))
    def test_between_two_the_interval_holds_both(self, one, other, batch):
        found = self.lengths((2, one), (16, other)).at(batch)
        length, factor = found.committed[3], np.exp(found.half_width[3])
        ends = min(one, other), max(one, other)
        assert ends[0] - 1e-9 <= length <= ends[1] + 1e-9
        assert length / factor <= ends[0] + 1e-9 and ends[1] - 1e-9 <= length * factor

    @pytest.mark.parametrize("batch", [1, 17])
    def test_beyond_nothing_is_known(self, batch):
        with pytest.raises(DataError, match="measured at batch 2, 16, and nothing is"):
            self.lengths((2, 2.8), (16, 2.2)).at(batch)

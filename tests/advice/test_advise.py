"""What is advised is the fastest by the table's own prices."""

import json
import math
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from evict_profile.advice.acceptance import of_lengths, of_rate, of_text, of_trace
from evict_profile.advice.advise import (
    STAY,
    WORTHWHILE,
    Advisor,
    BatchAdvice,
    schedule,
)
from evict_profile.advice.drafting import DraftCost
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.report.advice_page import tree_flags
from evict_profile.table import CostTable
from tests.command import evict, refused
from tests.exported import sglang_reads
from tests.factories import DRAFTING
from tests.traces.synthetic import PRICED, Plan, write_trace

FREE = 0.0
GOOD = of_lengths({1: 1.95, 2: 2.85, 3: 3.7}, "good", "--lengths 1.95,2.85,3.7")


@pytest.fixture
def table(saved_table: Path) -> CostTable:
    """Batches 1 and 2, contexts 64 and 256, widths up to 16."""
    return CostTable.load(saved_table)


def advisor(table: CostTable, **changes: object) -> Advisor:
    made = Advisor(table, GOOD, DraftCost(table, FREE), 64.0)
    return replace(made, **changes)


class TestBest:
    """One batch."""

    @pytest.mark.parametrize("batch", [1, 2])
    def test_speed_is_committed_times_price_over_price(
        self, table: CostTable, batch: int
    ) -> None:
        price = table.price(batch, 64).step_cost_us
        advice = advisor(table, drafting=DraftCost(table, 0.5)).at(batch)
        for way, length in zip(advice.ways, (1.0, 1.95, 2.85, 3.7), strict=True):
            step_us = price[batch * way.width] + 500.0 * way.levels
            assert way.step_us == pytest.approx(step_us)
            assert way.speed.value == pytest.approx(length * price[batch] / step_us)
        assert advice.best is max(advice.ways, key=lambda way: way.speed.value)

    def test_not_to_speculate_is_an_answer(self, table: CostTable) -> None:
        advice = advisor(table, lengths=of_rate(0.02)).at(1)
        assert advice.best.levels == 0
        assert advice.best.speed.value == 1.0
        assert advice.sure

    @pytest.mark.parametrize(("gain", "drafts"), [(1.005, 0), (1.02, 1)])
    def test_less_than_one_per_cent_is_not_worth_it(
        self, table: CostTable, gain: float, drafts: int
    ) -> None:
        price = table.price(1, 64).step_cost_us
        lengths = of_lengths({1: gain * price[2] / price[1]}, "", "")
        assert advisor(table, lengths=lengths).at(1).best.levels == drafts

    def test_a_batch_at_which_no_draft_is_priced_settles_nothing(
        self, table: CostTable
    ) -> None:
        assert not BatchAdvice(1, advisor(table).at(1).ways[:1], None).sure

    def test_what_the_default_loses(self, table: CostTable) -> None:
        advice = advisor(table, lengths=of_rate(0.02), asked=2).at(1)
        assert advice.default_loses == pytest.approx(1.0 - advice.ways[2].speed.value)
        assert advisor(table, asked=9).at(1).default_loses is None

    def test_interval_adds_acceptance_and_both_prices(self, table: CostTable) -> None:
        """In quadrature; plain decoding has none."""
        known = replace(GOOD, reach=GOOD.reach + 0.1)
        price, way = table.price(1, 64), advisor(table, lengths=known).at(1).ways[2]
        halves = [
            (price.high_us[t] - price.low_us[t]) / 2 / price.step_cost_us[t]
            for t in (1, 3)
        ]
        assert way.speed.high / way.speed.value == pytest.approx(
            math.exp(math.hypot(0.1, *halves))
        )

    def test_a_composed_table_has_the_error_of_its_growth(
        self, composed_path: Path
    ) -> None:
        table = CostTable.load(composed_path)
        ways = advisor(table, context=float(table.axes.context[0])).at(1).ways
        growth = table.provenance.noise
        assert ways[0].speed.high == 1.0
        assert ways[1].speed.high / ways[1].speed.value == pytest.approx(
            math.exp(1.96 * growth)
        )

    def test_widths_beyond_the_table_are_left_out(self, table: CostTable) -> None:
        ways = advisor(table, lengths=of_rate(0.9)).at(2).ways
        assert max(way.width for way in ways) * 2 <= table.max_tokens(2)


class TestDrafting:
    """Measured, given, or assumed."""

    def test_measured_clocks_are_taken_with_the_steps_rest(
        self, table: CostTable
    ) -> None:
        cost = DraftCost(replace(table, drafting=DRAFTING))
        assert cost.us(1, 0, 64) == 10.0
        assert cost.us(1, 2, 64) == 250.0 + 40.0
        assert str(cost).startswith("measured on code")

    def test_what_is_given_comes_first(self, table: CostTable) -> None:
        assert DraftCost(replace(table, drafting=DRAFTING), 2.0).us(1, 3, 64) == 6e3

    def test_assumed_is_a_layer_and_the_head(self, table: CostTable) -> None:
        """The known run: a forward is all its layers and the rest."""
        cost = DraftCost(table)
        assert "ASSUMED" in str(cost)
        layers = table.fit.measured_layers * table.fit.layer_scale
        rest = 200.0 + 40.0
        step_us = table.price(1, 64).step_cost_us[1]
        assert cost.us(1, 1, 64) == pytest.approx(
            (step_us - rest) / layers + rest, rel=0.02
        )

    def test_impossible_times_are_refused(self, table: CostTable) -> None:
        with pytest.raises(ConfigError, match="--draft-level-ms"):
            DraftCost(table, -1.0)


class TestSchedule:
    """Draft lengths by batch."""

    def test_each_batch_is_within_half_a_per_cent_of_its_best(
        self, composed_path: Path
    ) -> None:
        table = CostTable.load(composed_path)
        asked = Advisor(table, of_rate(0.7), DraftCost(table), table.axes.context[0])
        stretches = schedule(asked)
        assert stretches[0].first == 1
        assert stretches[-1].last == asked.largest
        for each in stretches:
            for batch in range(each.first, each.last + 1):
                ways = asked.at(batch).ways
                own = next(way for way in ways if way.levels == each.drafts)
                best = max(way.speed.value for way in ways)
                assert own.speed.value * STAY * WORTHWHILE >= best
        drafts = [each.drafts for each in stretches]
        assert all(a != b for a, b in pairwise(drafts))

    def test_a_longest_draft_is_kept(self, table: CostTable) -> None:
        assert {s.drafts for s in schedule(advisor(table), longest=1)} <= {0, 1}

    def test_trees_have_no_schedule(self, table: CostTable, tmp_path: Path) -> None:
        trees = of_trace(write_trace(tmp_path / "t.parquet"))[1]
        with pytest.raises(ConfigError, match="acceptance is of trees"):
            schedule(advisor(table, lengths=trees))


def test_trees_are_told_as_flags_and_chains_are_not(table: CostTable) -> None:
    """Width and levels of the best tree, where one pays."""
    trees = advisor(table, lengths=replace(GOOD, kind="tree"))
    ways = trees.at(1).ways
    flags = tree_flags(trees, [BatchAdvice(1, (ways[3],), 3)])
    shown = "--speculative-num-steps 3 --speculative-num-draft-tokens 4"
    expected = (f"SGLang at batch 1: {shown}, topk as traced",)
    assert flags == expected
    assert tree_flags(trees, [BatchAdvice(1, (ways[0],), 3)]) == ()
    assert tree_flags(advisor(table), [BatchAdvice(1, (ways[3],), 3)]) == ()


class TestCommand:
    """`evict-profile advise`."""

    def test_answers_on_one_screen_and_a_page(
        self, saved_table: Path, tmp_path: Path
    ) -> None:
        done = evict(
            *("advise", saved_table, "--lengths", "1.95,2.85,3.7"),
            *("--draft-level-ms", "0", "--out", "page.html"),
            folder=tmp_path,
        )
        assert len(done.output.splitlines()) < 25
        assert "default: 3 drafts" in done.output
        assert "--lengths 1.95,2.85,3.7 --draft-level-ms 0.0 --out FILE" in done.output
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert page.count("<svg") == 1
        assert "every way to draft" in page

    def test_a_trace_answers_for_chains_and_trees(
        self, saved_table: Path, tmp_path: Path
    ) -> None:
        write_trace(tmp_path / "t.parquet", Plan(about=PRICED))
        words = ("advise", saved_table, "--trace", "t.parquet", "--out", "p.html")
        done = evict(*words, folder=tmp_path)
        assert "chains (best children in t.parquet)" in done.output
        assert "trees, cut to their best nodes" in done.output
        page = (tmp_path / "p.html").read_text(encoding="utf-8")
        assert page.count("<svg") == 2

    def test_says_not_to_speculate(self, saved_table: Path, tmp_path: Path) -> None:
        done = evict("advise", saved_table, "--rate", "0.02", folder=tmp_path)
        assert "Do not speculate at batch 1, 2." in done.output
        assert "no schedule: drafting pays at no batch" in done.output

    @pytest.mark.parametrize(
        "acceptance", [("--rate", "0.87654321"), ("--trace", "a trace.parquet")]
    )
    def test_the_printed_command_writes_what_was_advised(
        self, saved_table: Path, tmp_path: Path, acceptance: tuple[str, str]
    ) -> None:
        """At the same context, acceptance and time of drafting."""
        path = write_trace(tmp_path / "a trace.parquet", Plan(about=PRICED))
        given = ("--context", 256, "--draft-level-ms", 0.123456789)
        done = evict("advise", saved_table, *acceptance, *given, folder=tmp_path)
        [line] = [x for x in done.stdout.splitlines() if x.startswith("write: ")]
        made = evict(*shlex.split(line)[2:], folder=tmp_path)
        assert made.exit_code == 0, made.output
        written = json.loads((tmp_path / "FILE").read_text())
        lengths = of_rate(0.87654321) if "--rate" in acceptance else of_trace(path)[0]
        table = CostTable.load(saved_table)
        asked = Advisor(table, lengths, DraftCost(table, 0.123456789), 256)
        for each in schedule(asked):
            assert sglang_reads(written, each.first) == each.drafts
        assert written["evict_profile"]["context"] == 256

    def test_a_table_that_prices_no_draft_is_refused_at_once(
        self, saved_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CostTable, "max_tokens", lambda table, batch: batch)
        for batch in ((), ("--batch", 1)):
            done = evict("advise", saved_table, "--rate", 0.5, *batch, folder=tmp_path)
            assert done.exit_code == 2
            assert "prices no draft at any of its batches" in done.stderr
            assert not done.stdout

    def test_trees_are_compared_with_no_chain(
        self, saved_table: Path, tmp_path: Path
    ) -> None:
        """A default is a draft length, and all trees of a trace have one depth."""
        path = write_trace(tmp_path / "t.parquet", Plan(about=PRICED))
        words = ("advise", saved_table, "--trace", path, "--default-k", 4)
        done = evict(*words, folder=tmp_path)
        assert done.exit_code == 0, done.output
        chains, trees = done.stdout.split("trees, cut to their best nodes")
        assert "not known" not in chains
        assert trees.count("not known") == 2

    @pytest.mark.parametrize("default_k", [9, 9999])
    def test_a_default_of_which_no_acceptance_is_known_is_refused(
        self, saved_table: Path, tmp_path: Path, default_k: int
    ) -> None:
        words = (
            "advise",
            saved_table,
            "--lengths",
            "1.5,1.9",
            "--default-k",
            default_k,
        )
        assert f"--default-k {default_k}: " in refused(*words, folder=tmp_path)

    def test_mistakes_are_a_sentence(self, saved_table: Path, tmp_path: Path) -> None:
        assert "in one form" in refused("advise", saved_table, folder=tmp_path)
        words = ("advise", saved_table, "--rate", "1.5")
        assert "chance from 0 to 1" in refused(*words, folder=tmp_path)
        words = ("advise", saved_table, "--rate", "0.5", "--batch", "99")
        assert "outside what was measured" in refused(*words, folder=tmp_path)


def test_published_lengths_fall_at_the_end() -> None:
    """K = 7 and 8 committed less than 6 in the run that was published."""
    assert of_text("1.84,2.51,3.01,3.36,3.61,3.77,3.73,3.47").committed[-1] == 3.47

"""What is advised is the fastest by the table's own costs."""

import json
import math
import shlex
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from evict_profile.advice.acceptance import of_lengths, of_rate
from evict_profile.advice.advise import (
    CHANGE,
    Advisor,
    BatchAdvice,
    DraftPlan,
    Range,
    plan,
    schedule,
    traffic_of,
)
from evict_profile.errors import ConfigError, DataError
from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.report.advice import Advice
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import RECORD
from tests.command import evict, refused
from tests.exported import shipped_table
from tests.traces.synthetic import TINY, write_trace
from tests.traces.synthetic import Plan as TracePlan

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1"
NAMED = ("--model", "qwen3-30b-a3b", "--gpu", "h200", "--engine", "sglang")
GOOD = of_lengths({1: 1.95, 2: 2.85, 3: 3.7}, "good")


@pytest.fixture(autouse=True)
def shipped_alone(shipped_root, monkeypatch):
    """What has a name is looked up in the shipped tables."""
    monkeypatch.setenv("EVICT_PROFILE_TABLES", str(shipped_root / "cost_tables"))


@pytest.fixture
def table(saved_table):
    """Batches 1 and 2, contexts 64 and 256, widths up to 16."""
    return CostTable.load(saved_table)


def advisor(table, lengths=GOOD, level_ms=0.0):
    return Advisor.of(table, lengths, level_ms=level_ms)


class TestBest:
    @pytest.mark.parametrize("batch", [1, 2])
    def test_speed_is_committed_times_cost_over_cost(self, table, batch):
        cost = table.costs(batch, 64).step_cost_us
        advice = advisor(table, level_ms=0.5).at(batch)
        for way, length in zip(advice.ways, (1.0, 1.95, 2.85, 3.7), strict=True):
            step_us = cost[batch * way.width] + 500.0 * way.levels
            assert way.ratio == pytest.approx(step_us / cost[batch])
            assert way.speed.value == pytest.approx(length * cost[batch] / step_us)
        assert advice.best is max(advice.ways, key=lambda way: way.speed.value)

    def test_not_to_speculate_is_an_answer(self, table):
        advice = advisor(table, lengths=of_rate(0.02)).at(1)
        assert advice.best.levels == 0
        assert advice.best.speed.value == 1.0
        assert advice.sure

    @pytest.mark.parametrize(("gain", "drafts"), [(1.005, 0), (1.02, 1)])
    def test_less_than_one_per_cent_is_not_worth_it(self, table, gain, drafts):
        cost = table.costs(1, 64).step_cost_us
        lengths = of_lengths({1: gain * cost[2] / cost[1]}, "")
        assert advisor(table, lengths=lengths).at(1).best.levels == drafts

    def test_interval_adds_acceptance_and_both_costs(self, table):
        known = replace(GOOD, half_width=GOOD.half_width + 0.1)
        cost, way = table.costs(1, 64), advisor(table, lengths=known).at(1).ways[2]
        halves = [
            (cost.high_us[t] - cost.low_us[t]) / 2 / cost.step_cost_us[t]
            for t in (1, 3)
        ]
        assert way.speed.high / way.speed.value == pytest.approx(
            math.exp(math.hypot(0.1, *halves))
        )

    @pytest.mark.parametrize("batch", [1, 4])
    def test_a_served_step_has_the_error_of_what_it_adds(self, batch):
        """None at plain decoding, whose ratio is 1; more where no run was compared."""
        ways = Advisor.of(shipped_table(H200), GOOD).at(batch).ways
        assert ways[0].speed.low == ways[0].speed.high == 1.0
        table = ServedStep.of(shipped_table(H200)).table
        plain_us = table.step_cost_us(batch, min(table.axes.context))[batch]
        for way in ways[1:]:
            step = (batch, way.width, way.levels, plain_us)
            fast, slow = RECORD.ratio_interval(way.ratio, *step)
            assert way.speed.low == pytest.approx(way.committed / slow)
            assert way.speed.high == pytest.approx(way.committed / fast)

    def test_a_longer_context_adds_what_is_less_certain_there(self):
        """Ends that are wider for drafts than for plain decoding."""
        table, batch = shipped_table(H200), 64
        wide = tuple(
            s
            if s.context == min(table.axes.context)
            else replace(
                s,
                high_us=tuple(
                    us * (2.0 if t > batch else 1.5)
                    for t, us in enumerate(s.step_cost_us)
                ),
            )
            for s in table.staircases
        )
        known, less = (
            Advisor.of(each, GOOD, context=2048).at(batch).ways[3].speed
            for each in (table, replace(table, staircases=wide))
        )
        assert less.low < known.low and less.value == pytest.approx(known.value)

    def test_assumed_drafting_may_take_no_time_or_twice_as_long(self, table):
        cost, assumed = table.costs(1, 64), Advisor.of(table, GOOD)
        way = assumed.at(1).ways[1]
        undrafted = cost.step_cost_us[2] / cost.step_cost_us[1]
        assert way.ratio > undrafted
        assert way.speed.high > way.committed / undrafted

    def test_costs_are_of_the_served_step(self):
        table, batch = shipped_table(H200), 16
        served, way = ServedStep.of(table), Advisor.of(table, GOOD).at(batch).ways[3]
        us = served.table.step_cost_us(batch, min(table.axes.context))
        ratio = (us[batch * 4] + served.beside_us(batch, 3)) / us[batch]
        assert way.ratio == pytest.approx(ratio)

    def test_branches_of_trees_take_their_time(self):
        table, levels = shipped_table(H200), np.arange(4)
        chains, trees = (
            Advisor.of(table, replace(GOOD, kind=kind)).served.drafting.at(1)
            for kind in ("chain", "tree")
        )
        apart = np.subtract(trees.draft_us, chains.draft_us)[:4]
        assert apart == pytest.approx(levels * RECORD.amounts.branch_us)

    def test_widths_beyond_the_table_are_left_out(self, table):
        ways = advisor(table, lengths=of_rate(0.9)).at(2).ways
        assert max(way.width for way in ways) * 2 <= table.max_tokens(2)


class TestPlan:
    def test_each_batch_is_within_five_per_cent_of_its_best(self):
        asked = Advisor.of(shipped_table(H200), of_rate(0.7))
        ranges = schedule(asked)
        assert (ranges[0].first, ranges[-1].last) == (1, asked.batches[-1])
        for each in ranges:
            for batch in range(each.first, each.last + 1):
                speeds = asked.at(batch).speeds
                assert speeds[each.drafts] * CHANGE >= max(speeds.values())
        assert all(a.drafts != b.drafts for a, b in pairwise(ranges))

    def test_a_length_stays_until_another_gains_five_per_cent(self):
        speeds = {1: {2: 1.5, 3: 1.4}, 2: {2: 1.4, 3: 1.45}, 3: {2: 1.3, 3: 1.4}}
        asked = SimpleNamespace(
            batches=(1, 3), at=lambda batch: SimpleNamespace(speeds=speeds[batch])
        )
        assert schedule(asked) == (Range(1, 2, 2), Range(3, 3, 3))

    def test_batches_below_the_smallest_covered_draft_as_it_does(self):
        speeds = {2: {2: 1.5, 5: 1.9}, 3: {2: 1.6, 5: 1.1}}
        asked = SimpleNamespace(
            batches=(2, 3), at=lambda batch: SimpleNamespace(speeds=speeds[batch])
        )
        assert schedule(asked) == (Range(1, 2, 5), Range(3, 3, 2))

    @pytest.mark.parametrize(
        ("drafting", "ranges"),
        [
            ((1.5, 0.9, 0.9, 0.9), (Range(1, 1, 2), Range(2, 4, 0))),
            ((1.5, 0.97, 0.96, 0.97), (Range(1, 4, 2),)),
            ((1.5, 0.9, 1.5, 1.5), (Range(1, 4, 2),)),
            ((1.5, 1.5, 1.5, 0.9), (Range(1, 4, 2),)),
            ((0.9, 1.03, 1.2, 1.2), (Range(1, 2, 0), Range(3, 4, 2))),
            ((0.9, 1.2, 0.9, 0.9), (Range(1, 4, 0),)),
        ],
    )
    def test_plain_decoding_begins_and_ends_for_more_than_one_batch(
        self, drafting, ranges
    ):
        speeds = {batch: {0: 1.0, 2: v} for batch, v in enumerate(drafting, 1)}
        asked = SimpleNamespace(
            batches=(1, 4), at=lambda batch: SimpleNamespace(speeds=speeds[batch])
        )
        assert schedule(asked) == ranges
        assert schedule(asked, falling=True) == (Range(1, 4, 2),)

    def test_the_gain_is_time_saved_over_the_traffic(self, table):
        """Shares of plain decoding's time, over the speed of each batch."""
        asked, traffic = advisor(table), {1: 0.25, 2: 0.75}
        made = plan(asked, traffic_of("1:5,2:15"))
        assert made.traffic == traffic
        gains = {
            k: 1.0 / sum(w / asked.at(b).speeds[k] for b, w in traffic.items())
            for k in (0, 1, 2, 3)
        }
        assert made.drafts == max(gains, key=gains.__getitem__)
        assert made.gain == pytest.approx(gains[made.drafts])

    def test_plain_decoding_is_advised_where_drafts_gain_nothing(self, table):
        made = plan(advisor(table, of_rate(0.02)), {1: 1.0})
        assert (made.drafts, made.gain, made.advised) == (0, 1.0, ())

    @pytest.mark.parametrize(("gain", "advised"), [(1.62, 2), (1.5, 1)])
    def test_a_schedule_has_to_gain_its_cost(self, gain, advised):
        ranges = (Range(1, 4, 5), Range(5, 8, 2))
        made = DraftPlan({1: 0.5, 6: 0.5}, 3, 1.5, ranges, gain)
        assert len(made.advised) == advised
        if advised == 1:
            assert made.advised == (Range(1, 6, 3),)

    def test_the_first_range_may_have_to_draft_most(self):
        asked = Advisor.of(shipped_table(H200), of_rate(0.8))
        ranges = plan(asked, {1: 1.0}, falling=True).schedule
        assert max(each.drafts for each in ranges) == ranges[0].drafts

    def test_a_batch_beyond_what_is_covered_is_refused(self, table):
        """Clamped, it is costed at its own tokens, as far as they are covered."""
        traffic = {1: 0.5, 3: 0.5}
        with pytest.raises(DataError, match=r"batch 3 is outside .* --outside clamp"):
            plan(advisor(table), traffic)
        clamped = Advisor.of(table, GOOD, level_ms=0.0, outside="clamp")
        assert plan(clamped, traffic).schedule[-1].last == 3
        with pytest.raises(ConfigError, match="no draft is covered at batch 64"):
            plan(clamped, {1: 0.5, 64: 0.5})

    def test_batches_end_where_the_context_is_not_covered(self, table):
        own = tuple(s for s in table.staircases if (s.batch, s.context) != (2, 256))
        shorter = replace(table, staircases=own)
        assert Advisor.of(shorter, GOOD, context=64).batches == (1, 2)
        assert Advisor.of(shorter, GOOD, context=256).batches == (1,)

    @pytest.mark.parametrize(
        "text", ["", "1:x", "1:0", "0:1", "1:.5,1:.5", "1:nan", "1:inf"]
    )
    def test_odd_traffic_is_refused(self, text):
        with pytest.raises(ConfigError, match="as in 1:"):
            traffic_of(text)


def test_sglangs_flags_are_of_trees_that_beat_every_chain(table):
    chains, trees = advisor(table), advisor(table, replace(GOOD, kind="tree"))
    ways = chains.at(1).ways

    def flags(chain, tree):
        advice = Advice([chains, trees], (1,), plan(chains, {1: 1.0}), False)
        pairs = (chains, chain), (trees, tree)
        vars(advice)["parts"] = [(a, [BatchAdvice(1, (way,))]) for a, way in pairs]
        return [*advice.tree_flags()]

    [line] = flags(ways[0], ways[3])
    assert "--speculative-num-steps 3 --speculative-num-draft-tokens 4" in line
    assert not flags(ways[0], ways[0]) and not flags(ways[3], ways[3])


def test_lengths_that_gain_as_much_are_named(table):
    chains = advisor(table)
    lines = Advice([chains], (1,), plan(chains, {1: 1.0}), True).notes()
    assert "K=3 is the longest that was compared; more may gain more." in [*lines]


class TestCommand:
    def asked(self, folder, *words):
        done = evict("advise", *words, folder=folder)
        assert done.exit_code == 0, done.output
        return done

    def test_answers_on_one_screen(self, saved_table, tmp_path):
        words = (saved_table, "--accept", "1.95,2.85,3.7", "--draft-level-ms", 0)
        said = self.asked(tmp_path, *words).stdout
        assert len(said.splitlines()) < 25
        assert max(map(len, said.splitlines())) <= 100
        assert said.startswith("K = 3: about ")
        assert "break-even" in said and "acceptance: " not in said
        assert "acceptance: " in self.asked(tmp_path, *words, "--explain").stdout

    def test_a_batch_has_all_its_draft_lengths_and_what_was_served(self, tmp_path):
        """The example's served speed-ups lie in the intervals of the predicted."""
        example = data_root() / "examples/specbundle-qwen3-30b-a3b.yaml"
        words = (*NAMED, "--tp", 4, "--accept", example, "--batch", 8, "--json")
        answer = json.loads(self.asked(tmp_path, *words).stdout)
        [batch] = answer["parts"][0]["batches"]
        assert [way["levels"] for way in batch["ways"]] == [0, 3, 5, 7]
        for way in batch["ways"][1:]:
            assert way["speed"]["low"] < way["served"] < way["speed"]["high"]
            assert way["speed"]["value"] == pytest.approx(way["served"], rel=0.05)

    def test_a_trace_answers_for_chains_and_trees(self, saved_table, tmp_path):
        write_trace(tmp_path / "t.parquet", TracePlan(about=TINY))
        words = (saved_table, "--accept", "t.parquet", "--explain")
        said = self.asked(tmp_path, *words).stdout
        assert "acceptance: best children in t.parquet" in said
        assert "trees, cut to their best nodes" in said

    def test_says_where_what_is_advised_loses(self, saved_table, tmp_path, monkeypatch):
        monkeypatch.setattr(
            DraftPlan, "speed", lambda plan, at: 0.9 if at.batch == 2 else 2
        )
        said = self.asked(tmp_path, saved_table, "--accept", "0.9").stdout
        assert "Drafting is slower than plain decoding at batch 2." in said

    def test_what_is_clamped_is_said_and_repeated(self, saved_table, tmp_path):
        words = (saved_table, "--accept", "1.95,2.85,3.7", "--draft-level-ms", 0)
        words = (*words, "--context", 300, "--outside", "clamp", "--json")
        answer = json.loads(self.asked(tmp_path, *words).stdout)
        [said] = [c for c in answer["caveats"] if "read as" in c]
        assert said.startswith("context 300 read as 256: ")

    def test_documents_are_alone_on_stdout(self, saved_table, tmp_path):
        words = (saved_table, "--accept", "1.95,2.85,3.7", "--draft-level-ms", 0)
        done = self.asked(tmp_path, *words, "--md")
        assert "| batch | draft |" in done.stdout
        done = self.asked(tmp_path, *words, "--json")
        assert json.loads(done.stdout)["plan"]["drafts"] == 3
        assert not list(tmp_path.glob("advice*"))

    def test_a_table_that_costs_no_draft_is_refused_at_once(
        self, saved_table, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(CostTable, "max_tokens", lambda table, batch: batch)
        words = ("advise", saved_table, "--accept", 0.5, "--batch", 1)
        assert "covers no draft at any of its" in refused(*words, folder=tmp_path)


class TestByName:
    def test_one_that_is_there_is_taken(self, tmp_path):
        """Under its name on Hugging Face as well, and with the engines' own dtypes."""
        named = ("--model", "Qwen/Qwen3-30B-A3B-Instruct-2507", *NAMED[2:])
        words = (*named, "--tp", 4, "--dtype", "bf16", "--accept", 0.7)
        done = evict("advise", *words, folder=tmp_path)
        title = "qwen3-30b-a3b on NVIDIA H200, composed from public rows, not measured"
        assert f"{title}, bfloat16, sglang 0.5.14, tp 4" in " ".join(
            done.stdout.split()
        )

    def test_an_own_table_is_found_and_comes_before_a_shipped_one(
        self, tmp_path, monkeypatch
    ):
        """Where `calibrate` writes by default; two shipped ones have the same names."""
        monkeypatch.delenv("EVICT_PROFILE_TABLES")
        rows = "batch,K,step ms,engine\n8,0,10,sglang\n8,3,15,sglang\n"
        (tmp_path / "runs.csv").write_text(rows)
        words = ("calibrate", "--served", "runs.csv", *NAMED[:4])
        assert evict(*words, folder=tmp_path).exit_code == 0
        done = evict("advise", *NAMED, "--accept", 0.7, folder=tmp_path)
        assert done.exit_code == 0, done.output
        assert "qwen3-30b-a3b on h200, not stated, sglang" in done.stdout
        shown = evict("show", "--gpu", "h200", folder=tmp_path).stdout
        assert shown.startswith("h200 in cost_tables/h200\n")
        assert "NVIDIA_H200 in " in shown

    def test_a_hint_can_be_typed(self, tmp_path, monkeypatch):
        """The format of a probed table may be two words."""
        monkeypatch.delenv("EVICT_PROFILE_TABLES")
        (tmp_path / "runs.csv").write_text("batch,K,step ms\n8,0,10\n8,3,15\n")
        names = ("--model", "gpt-oss-20b", "--gpu", "RTX 4090")
        words = ("calibrate", "--served", "runs.csv", *names)
        assert evict(*words, folder=tmp_path).exit_code == 0
        said = refused("advise", *names, "--accept", 0.7, folder=tmp_path)
        hint = said.partition("evict-profile ")[2].partition(" | ")[0]
        assert hint.startswith("advise ") and "'not stated'" in hint
        done = evict(*shlex.split(hint), folder=tmp_path)
        assert done.exit_code == 0, done.output

    def test_one_that_is_not_there_is_estimated_once(
        self, wheel, tmp_path, monkeypatch
    ):
        """A damaged file of the cache is written anew."""
        (tmp_path / "none").mkdir()
        monkeypatch.setenv("EVICT_PROFILE_TABLES", str(tmp_path / "none"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        words = ("advise", *NAMED, "--accept", 0.7, "--from", wheel)
        first = evict(*words, folder=tmp_path)
        assert first.exit_code == 0, first.output
        assert "composed from public rows" in first.stdout
        [kept] = tmp_path.rglob("qwen3-30b-a3b-*.json")
        assert f"kept: {kept}" in first.stderr
        again = evict(*words, folder=tmp_path)
        assert (again.stdout, again.stderr) == (first.stdout, "")
        whole = kept.read_text()
        kept.write_text(whole[:100])
        assert evict(*words, folder=tmp_path).stdout == first.stdout
        assert CostTable.load(kept).key.model == "qwen3-30b-a3b"

"""What is asked of a table, what is noted beside the answer, and the command."""

import json

import pytest

from evict_profile.advice.decide import decide
from evict_profile.cli.options import batches_of
from evict_profile.errors import ConfigError, DataError
from evict_profile.records import replace
from evict_profile.served import make
from evict_profile.served.growth import EXPONENT
from evict_profile.table import CostTable
from tests.advice.served import served_table
from tests.command import evict, refused
from tests.exported import shipped_table
from tests.served.runs import rows, run
from tests.traces.synthetic import TINY, Plan, write_trace

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1"
FLAT = ((4, 0, 10), (4, 3, 20), (64, 0, 10), (64, 3, 20))


def notes(*rows, accept="3:2.4", engine="not stated", **options):
    return " ".join(
        decide(served_table(*rows, engine=engine), accept, **options).notes()
    )


def test_one_batch_may_be_a_number():
    one, several = (decide(served_table(*FLAT), "3:2.4", batch=b) for b in (4, [4]))
    assert one.batches == several.batches == (4,)
    assert one.every and not decide(served_table(*FLAT), "3:2.4").every


def test_other_batches_are_answered_beside_one_of_which_nothing_is_known():
    found = decide(served_table(*FLAT), "3:2.4", batch=[4, 8, 128])
    assert found.batches == (4, 8) and "batch 8 was not served" in found.caveats
    assert not any("batch 4 was" in each for each in found.caveats)
    [said] = [each for each in found.notes() if "Not known at batch 128" in each]
    assert "serve plain decoding and one K at batch 128, or take" in said
    with pytest.raises(DataError, match="one K at batch 128"):
        decide(served_table(*FLAT), "3:2.4", batch=128)


def test_lengths_are_said_to_be_fitted_where_such_a_k_is_shown():
    """The best of each batch, and what may be better, is measured or is not."""
    table = served_table((1, 0, 10.0), (1, 1, 14.0), (1, 3, 20.0))
    measured = decide(table, "1:1.8,3:2.1")
    shown = [
        way.levels for way in measured.shown(measured.advisor, measured.parts[0][1][0])
    ]
    assert shown == [1, 3] and not measured.plan.rival
    assert not measured.caveats
    [caveat] = decide(table, "1:1.8,3:2.1", batch=1).caveats
    assert caveat.startswith("accepted lengths at other K are fitted to K = 1, 3")


def test_what_speaks_against_runs_is_said_and_remarks_are_not():
    """A step of 4 tokens in 5 plain steps; that runs ran once is in the interval."""
    slow = notes((1, 0, 10.0), (1, 3, 50.0))
    assert "verifies 4 tokens takes 5.0 plain steps: experts cannot" in slow
    assert "ran once" not in slow


def test_batches_without_plain_decoding_are_asked_for_alone():
    rows = ((1, 0, 8.0), (1, 3, 12.0), (8, 2, 10.0), (8, 3, 12.0))
    found = decide(served_table(*rows), "1.8,2.2,2.5")
    assert found.batches == (1,)
    assert "at batch 8: plain decoding was not served" in " ".join(found.notes())
    assert decide(served_table(*rows), "1.8,2.2,2.5", batch=8).plan.reference == 2


def test_an_estimate_says_that_it_weighs_no_batch():
    said = "Shares of --traffic weigh no batch: an estimate judges each alone."
    for table in (shipped_table(H200), None):
        assert said in [*decide(table, "3:2.4", traffic="1:.9,64:.1").notes()]
        assert said not in [*decide(table, "3:2.4", traffic="1:.5,64:.5").notes()]


class TestOwnLengths:
    """A served table, asked without an acceptance."""

    def table(self):
        runs = rows("1,0,8|8,0,12|32,0,20")
        runs += [run(1, 3, 11.0, length=2.9), run(8, 3, 19.0, length=2.2)]
        table = served_table((1, 0, 8.0))
        return replace(table, runs=(*runs, run(32, 3, 45.0)))

    def test_each_batch_has_the_length_that_was_measured_there(self):
        found = decide(self.table(), batch=[1, 8])
        [(_, parts)] = found.parts
        assert [at.by_levels[3].committed for at in parts] == [2.9, 2.2]
        speeds = [at.by_levels[3].speed.value for at in parts]
        assert speeds == pytest.approx([2.9 * 8 / 11, 2.2 * 12 / 19])
        assert "--accept" not in found.asked

    def test_a_batch_without_a_length_beside_it_is_not_known(self):
        found = decide(self.table())
        assert found.batches == (1, 8)
        said = " ".join(found.notes())
        assert "batch 4" not in said and "Not known at batch 32: accepted" in (
            " ".join(decide(self.table(), batch=[4, 32]).notes())
        )

    def test_a_measured_step_at_a_given_length_is_said_to_be_that(self):
        table = self.table()
        assert ", as you measured: " in str(decide(table, batch=1).answer)
        given = str(decide(table, "3:2.4", batch=1).answer)
        assert "K = 3, its step as you measured: " in given

    def test_each_text_has_its_speed_beside_that_of_all(self):
        runs = [
            run(1, drafts, ms, length=drafts and length, text=text)
            for text, length in (("code", 3.2), ("prose", 1.8))
            for drafts, ms in ((0, 10.0), (3, 14.0))
        ]
        found = decide(make.served_table(runs, {}, "m", "g"), batch=1).answer
        assert "By text, K = 3 gives 2.29 on code, 1.29 on prose." in str(found)


@pytest.mark.parametrize(("accept", "said"), [("0.64", True), ("3:2.4", False)])
def test_a_bare_rate_is_the_first_drafts_chance(accept, said):
    rate = "0.64 was read as the chance that the first draft is accepted"
    assert (rate in notes(*FLAT, accept=accept)) == said


def test_trees_that_ran_stand_beside_the_chains_that_are_advised():
    table = served_table((1, 0, 10.0), (1, 3, 15.0))
    chain, plain = replace(table.runs[1], accept_lengths={3: 2.4}), table.runs[0]
    tree = replace(chain, topk=8, width=16, step_us=2e4, accept_lengths={3: 3.2})
    decision = decide(replace(table, runs=(plain, chain, tree)), None)
    assert decision.plan.drafts == 3 and [*decision.advisor.lengths.stated] == [3]
    assert "A tree ran too: K = 3, 16 tokens verified at batch 1 is 1.60 times" in (
        " ".join(decision.notes())
    )


def test_a_sweeps_table_with_drafting_tells_what_a_step_is_spent_on(workload_table):
    table = CostTable.load(workload_table)
    found = decide(table, "1.95,2.85,3.7", batch=1)
    [said] = [each for each in found.notes() if each.startswith("Of a step of K")]
    clock, cost = table.drafting.at(1), table.costs(1, 64).step_cost_us
    k = found.plan.lead.levels
    for part_us in (
        cost[1] + clock.plain_fixed_us,
        cost[1 + k] - cost[1],
        clock.draft_us[k],
        clock.fixed_us - clock.plain_fixed_us,
    ):
        assert f" {part_us / 1e3:.2f}" in said


@pytest.mark.parametrize(
    ("accept", "left"),
    [("3:2.4", "(1:1.80)"), ("0.7", "(1:1.80,3:2.60)"), ("1:1.7,3:2.4", "")],
)
def test_lengths_of_the_runs_are_said_to_be_left_for_those_that_are_given(accept, left):
    runs = [run(1), run(1, 1, 14.0, length=1.8), run(1, 3, 20.0, length=2.6)]
    table = make.served_table(runs, {}, "m", "g")
    said = [each for each in decide(table, accept).notes() if "are not used" in each]
    assert bool(said) == bool(left) and left in "".join(said)
    assert "are not used" not in notes(*FLAT, accept=accept)


@pytest.mark.parametrize(("engine", "said"), [("vllm", True), ("sglang", False)])
def test_what_a_schedule_cost_vllm_is_said_of_vllm(engine, said):
    rows = ((1, 0, 8.0), (1, 3, 10.0), (8, 0, 10.0), (8, 3, 40.0))
    found = notes(*rows, engine=engine, accept="3:1.9")
    assert "A schedule is advised" in found and "Served batches are 1, 8" in found
    assert ("vLLM #49548" in found) == said
    assert ("VLLM_USE_V2_MODEL_RUNNER=1" in found) == said
    # Drafting loses at batch 8, and the schedule ends before it.
    assert "slower than plain decoding" not in found


def test_one_length_for_all_says_where_it_is_slower():
    rows = ((1, 0, 8.0), (1, 3, 10.0), (8, 0, 10.0), (8, 3, 24.0))
    found = decide(served_table(*rows, engine="llama-cpp"), "3:2.0", drafter="pard")
    assert found.plan.drafts == 3
    slower = "K = 3 is slower than plain decoding at batch 8 (0.83 times)."
    assert str(found.answer).endswith(f" If it does: K = 3. {slower}")


class TestCommand:
    @pytest.fixture
    def place(self, tmp_path, monkeypatch):
        """A folder with a served table in it, where nothing else is found by name."""
        (tmp_path / "none").mkdir()
        monkeypatch.setenv("EVICT_PROFILE_TABLES", str(tmp_path / "none"))
        served_table((1, 0, 1e3 / 120), (1, 3, 16.0)).save(tmp_path / "own.json")
        return tmp_path

    def said(self, place, *words):
        done = evict("advise", *words, folder=place)
        assert done.exit_code == 0, done.output
        return " ".join(done.stdout.split())

    def test_a_served_table_is_read_by_its_schema(self, place):
        said = self.said(place, "own.json", "--accept", "3:2.4")
        head = "K = 3, its step as you measured: 1.25 times plain decoding"
        assert said.startswith(head)
        assert "gpt-oss-20b on RTX 4090" in said
        for unknown in ("not stated", "unstated", "context", "tp 1"):
            assert unknown not in said

    def test_without_a_table_other_servers_answer_and_two_commands_settle_it(
        self, place
    ):
        said = self.said(place, "--accept", "3:2.4")
        assert said.startswith(
            f"A step that verifies n tokens a request takes about n^{EXPONENT}"
        )
        assert "Yours of 2.40 at K = 3 is 1.44 times plain decoding (" in said
        assert "evict-profile probe URL --batch 1 --out runs.jsonl" in said
        assert "evict-profile import runs.jsonl --model MODEL --gpu GPU" in said

    @pytest.mark.parametrize(
        ("names", "reason"),
        [
            (("--model", "openai/gpt-oss-20b", "--gpu", "RTX 4090", "--engine", "vllm"),
             "no public rows are of RTX 4090 under vllm"),
            (("--model", "qwen3-30b-a3b", "--gpu", "MI300X", "--engine", "vllm"),
             "no public rows are of MI300X under vllm"),
            (("--model", "qwen3-30b-a3b", "--gpu", "M3 Max", "--engine", "llama-cpp"),
             "no public rows are of M3 Max under llama-cpp"),
            (("--model", "nobody", "--gpu", "h200", "--engine", "vllm"), "nobody"),
            (("--gpu", "RTX 4090"), "no public rows are of RTX 4090"),
            (("--gpu", "h200"), "--model and --engine would have to be given too"),
        ],
    )  # fmt: skip
    def test_every_dead_end_is_answered_with_its_reason(self, place, names, reason):
        said = self.said(place, *names, "--accept", "0.75")
        assert "No table answers: " in said and reason in said.partition("No table")[2]
        assert "Break-even accepted lengths are " in said
        assert "evict-profile import runs.jsonl --model" in said

    def test_without_an_acceptance_break_evens_are_said(self, place):
        path = shipped_table(H200).path
        found = json.loads(evict("advise", path, "--json", folder=place).stdout)
        assert [row["batch"] for row in found["break_evens"]][-1] == "any server"
        said = self.said(place, path)
        assert found["answer"] in said and "as --accept 3:2.4" in said
        named = self.said(place, "--gpu", "h200")
        assert "No table answers: --model and --engine" in named
        assert found["break_evens"][-1]["K=3"] in named

    def test_an_estimate_states_no_speed(self, place):
        path = shipped_table(H200).path
        said = self.said(place, path, "--accept", "3:2.4", "--batch", "8")
        assert said.startswith("Estimated, not measured: K = 3 pays where")
        assert "speed-up" not in said and "tok/s" not in said
        assert "verdict" in said and "evict-profile probe URL --batch 8" in said
        done = evict("advise", path, "--accept", "3:2.4", "--json", folder=place)
        assert '"speed"' not in done.stdout and '"gain"' not in done.stdout

    def test_a_trace_answers_for_chains_and_trees(self, saved_table, place):
        write_trace(place / "t.parquet", Plan(about=TINY))
        said = self.said(place, saved_table, "--accept", "t.parquet")
        assert "acceptance: best children in t.parquet" in said
        assert "trees, cut to their best nodes" in said

    def test_what_is_clamped_is_said(self, saved_table, place):
        words = (saved_table, "--accept", "1.95,2.85,3.7", "--draft-level-ms", 0)
        said = self.said(place, *words, "--context", 300, "--outside", "clamp")
        assert "caveat: context 300 read as 256: " in said

    def test_batches_are_given_at_once_or_one_by_one(self):
        assert batches_of(["1,8"]) == batches_of(["1", "8"]) == [1, 8]
        for wrong in ("0", "x", "1,", "-1", "1.5"):
            with pytest.raises(ConfigError, match="as in --batch 1,8"):
                batches_of([wrong])

    @pytest.mark.parametrize(
        ("words", "instead"),
        [
            (("--check", "runs.csv"), "evict-profile import RUNS"),
            (("--like", "olmoe-1b-7b"), "leave it out"),
        ],
    )
    def test_former_options_say_what_to_type(self, place, words, instead):
        assert instead in refused("advise", *words, folder=place)


def test_of_several_stated_lengths_the_fastest_is_judged():
    """K = 63 of 2.6 tokens loses; K = 3 of 2.4 is as good as alone."""
    decision = decide(None, "3:2.4,63:2.6")
    assert "Yours of 2.40 at K = 3 is 1.44 times" in str(decision.answer)


def test_of_several_contexts_one_has_to_be_named():
    runs = [
        replace(each, context=context)
        for context in (512.0, 8192.0)
        for each in rows("1,0,10|1,3,15")
    ]
    table = make.served_table(runs, {}, "m", "g")
    with pytest.raises(ConfigError, match="512, 8192 tokens; say which with --context"):
        decide(table, "3:2.4")
    assert "1.60 times" in str(decide(table, "3:2.4", context=8192).answer)


def test_batches_are_said_to_count_equally_unless_their_shares_are_given():
    table = served_table((1, 0, 8.0), (1, 3, 10.0), (8, 0, 10.0), (8, 3, 15.0))
    said = "Batches share the time equally"
    assert said in " ".join(decide(table, "3:2.4").notes())
    assert said not in " ".join(decide(table, "3:2.4", traffic="1:.2,8:.8").notes())
    assert said not in " ".join(decide(table, "3:2.4", batch=1).notes())


def test_what_may_be_better_has_a_row_beside_what_ran():
    found = decide(served_table((1, 0, 8.1), (1, 3, 11.4)), "3:2.9")
    [at] = found.parts[0][1]
    rival = found.plan.rival.levels
    assert rival > 3 and [w.levels for w in found.shown(found.advisor, at)] == [
        3,
        rival,
    ]


def test_what_the_answer_names_and_what_is_stated_have_rows(saved_table):
    """Of a sweep's table too, at a batch where another K is the best."""
    decision = decide(CostTable.load(saved_table), "3:2.4", outside="clamp")
    named = {decision.plan.lead.levels, 3}
    for at in decision.parts[0][1]:
        assert named <= {w.levels for w in decision.shown(decision.advisor, at)}


def test_an_estimate_names_another_k_that_pays_where_the_stated_one_does_not():
    table = shipped_table(H200)
    decision = decide(table, "7:3.2")
    [(advisor, found)] = decision.parts
    verdicts = {at.batch: at.by_levels[7].verdict for at in found}
    assert verdicts[1] == "not settled" and not decision.answer.settled
    assert "K = 3 pays at batch 1. The error" in str(decision.answer)
    assert advisor.at(1).by_levels[3].verdict == "pays"
    assert {way.levels for way in decision.shown(advisor, found[0])} == {3, 7}


def test_plain_decoding_has_no_verdict_of_an_estimate():
    decision = decide(shipped_table(H200), "3:1.55", batch=(1, 16))
    for advisor, found in decision.parts:
        shown = [way for at in found for way in decision.shown(advisor, at)]
        assert shown and all(way.levels for way in shown)


def test_the_answer_of_an_estimate_is_of_one_k_at_all_batches():
    """Of a rate K = 3 is judged, also at a batch where another K is faster."""
    decision = decide(shipped_table(H200), "3:2.4,7:2.6")
    [(_, found)] = decision.parts
    said = str(decision.answer)
    for at in (found[0], found[-1]):
        even = at.by_levels[3].break_even
        assert f"{even.value:.2f} tokens ({even.low:.2f} to {even.high:.2f})" in said


def test_another_k_that_pays_is_named_once_with_its_batches(monkeypatch):
    table = shipped_table(H200)
    way = decide(table, "3:2.4").parts[0][1][0].by_levels[3]
    monkeypatch.setattr(
        "evict_profile.advice.answer.paying",
        lambda advisor, batch, drafts: way if batch != 16 else None,
    )
    said = str(decide(table, "3:2.4").answer)
    assert said.count("K = 3 pays at batch") == 1
    assert "K = 3 pays at batch 1, 4 and 64." in said


def test_a_batch_that_was_not_served_names_the_list_of_estimates():
    served = served_table((4, 0, 8.0), (4, 3, 16.0))
    listed = "covers it: evict-profile show --model gpt-oss-20b --gpu 'RTX 4090'"
    with pytest.raises(DataError, match=listed):
        decide(served, "3:2.4", batch=1)


@pytest.mark.parametrize("drafter", ["draft_model", "pard", "dflash", "eagle3"])
def test_an_estimate_says_that_a_draft_model_of_its_own_may_be_slower(drafter):
    for table in (shipped_table(H200), None):
        said = " ".join(decide(table, "3:2.4", drafter=drafter).caveats)
        assert ("2 to 4.4 plain steps" in said) == (drafter != "eagle3")

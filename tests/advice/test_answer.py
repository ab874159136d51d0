"""The answer says what was measured, then what may be better, and how sure that is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.advice.acceptance import acceptance_of, of_lengths
from evict_profile.advice.advise import Advisor, Gain
from evict_profile.advice.answer import Answer
from evict_profile.advice.plan import DraftPlan, Range, plan, traffic_of
from evict_profile.advice.steps import OfEstimate, Unserved
from evict_profile.records import replace
from evict_profile.served.growth import ERROR, EXPONENT
from evict_profile.stats import Estimate
from tests.advice.served import planted, served_table
from tests.exported import shipped_table

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1"


def answer(table, accept, traffic="1:1"):
    [lengths] = acceptance_of(accept)
    advisor = Advisor.of(table, lengths)
    return Answer(advisor, plan(advisor, traffic_of(traffic), by_batch=False))


def planned(lead, basis="table", reference=0, **others):
    """The answer of a plan whose lead has this interval."""
    low, value, high = lead
    gain = Gain(3, Estimate(value, low, high), basis)
    advisor = Advisor(planted({1: {3: 1.0}}), of_lengths({3: 2.4}, ""))
    return str(Answer(advisor, DraftPlan({1: 1.0}, gain, reference, **others)))


def test_what_may_be_better_comes_after_it():
    other = Gain(2, Estimate(1.32, 1.11, 1.56), "other K")
    found = planned((1.09, 1.25, 1.44), "measured", rival=other)
    assert found.endswith(" at batch 1. K = 2 may give 1.32 (1.11 to 1.56), not run.")


def test_what_is_surely_better_is_advised_after_what_was_measured():
    ran = Gain(5, Estimate(1.1, 1.0, 1.2), "measured")
    found = planned((1.3, 1.5, 1.7), "other K", measured=ran)
    assert found == (
        "K = 5, as you measured: 1.10 times plain decoding (1.00 to 1.20) at batch 1. "
        "K = 3, not run: 1.50 times plain decoding (1.30 to 1.70) at batch 1, and "
        "surely faster."
    )


def test_a_certain_answer_is_given_however_noisy_its_step():
    """A plain step of 1.678 ms and one of 18.04 ms for 2.40 tokens."""
    found = str(answer(served_table((1, 0, 1.678), (1, 3, 18.04)), "3:2.40"))
    assert found.startswith(
        "Do not speculate: 0.22 times plain decoding (0.19 to 0.26) at batch 1"
    )


def test_what_may_be_better_is_to_be_run_where_a_measured_k_is_not_settled():
    """K = 4 has 1.01 of plain decoding; K = 2 commits nearly as much in less."""
    found = answer(served_table((1, 0, 10), (1, 4, 22.8)), "2:2.15,4:2.3", "1:1")
    assert found.plan.lead.levels == 4 and "does not pay" not in str(found)
    assert found.plan.rival and found.to_settle is found.plan.rival


def test_a_k_that_does_not_pay_leaves_another_open():
    """2.4 tokens in 3 steps; K = 2 may commit 2 in less than two."""
    found = answer(served_table((1, 0, 10), (1, 4, 30)), "1:1.7,4:2.4", "1:1")
    assert not found.settled and found.to_settle.levels == 2
    says = "K = 4, as you measured, does not pay: 0.80 times plain decoding"
    assert str(found).startswith(says)
    assert "Not settled whether drafting pays with another K. K = 2 may" in str(found)


def test_a_k_that_cannot_pay_is_not_offered():
    found = answer(
        served_table((1, 0, 10), (1, 1, 20), (1, 2, 40)), "1:1.1,2:1.2", "1:1"
    )
    assert found.settled and str(found).startswith("Do not speculate: 0.55 times")


def test_a_batch_between_others_is_answered_and_said_so():
    """Twice the plain step at both neighbours, and 1.4 tokens: 0.70."""
    flat = served_table((4, 0, 10), (4, 1, 20), (64, 0, 10), (64, 1, 20))
    ratio = flat.ratio(8, 2, 1).value
    ends = f"{1.4 / ratio.high:.2f} to {1.4 / ratio.low:.2f}"
    assert str(answer(flat, "1:1.4", "8:1")) == (
        f"Do not speculate: 0.70 times plain decoding ({ends}) at batch 8, where no "
        "draft was served, with K = 1."
    )


def test_what_the_interval_does_not_settle_is_said_first():
    assert planned((0.63, 1.2, 2.47)) == (
        "Not settled whether drafting pays at batch 1 (0.63 to 2.47 times plain "
        "decoding). If it does: K = 3."
    )


@given(
    st.tuples(*[st.floats(0.4, 2.0)] * 3).map(sorted),
    st.tuples(*[st.floats(0.4, 2.0)] * 3).map(sorted),
    st.sampled_from(["measured", "other K"]),
)
def test_no_headline_is_certain_where_the_interval_is_not(lead, other, basis):
    low, high = lead[0], lead[2]
    low_ran, ran, high_ran = other
    measured = Gain(5, Estimate(ran, low_ran, high_ran), "measured")
    beaten = measured if basis == "other K" and low > ran else None
    said = planned(lead, basis, measured=beaten)
    if "Do not speculate" in said:
        assert high < 1.01
    elif "surely faster" in said:
        assert low > max(1.0, ran)
    elif "Not settled" not in said:
        assert low > 1.0


def test_lengths_are_compared_without_plain_decoding():
    """14 ms for 10 ms, 3.92 for 2.5 tokens: 1.12 times."""
    served = served_table((1, 3, 10.0), (1, 5, 14.0))
    found = str(answer(served, "3:2.5,5:3.92"))
    assert (
        "K = 5, as you measured: 1.12 times K = 3 (0.98 to 1.29) at batch 1." in found
    )
    assert found.endswith("Plain decoding was not served.")


@pytest.mark.parametrize("traffic", ["4:1,8:1", "4:.7,8:.3"])
def test_the_gain_is_stated_over_the_batches_of_the_traffic(traffic):
    rows = [(4, 0, 10), (4, 3, 12), (8, 0, 10), (8, 3, 16)]
    found = answer(served_table(*rows), "3:2.4", traffic)
    shares = traffic_of(traffic)
    mean = 1.0 / (shares[4] / 2.0 + shares[8] / 1.5)
    assert found.plan.gain.value == pytest.approx(mean)
    assert f": {mean:.2f} times plain decoding (" in str(found)
    assert ") over batches 4 and 8." in str(found)


def test_too_few_prompts_leave_the_interval_unknown():
    advisor = Advisor(
        planted({8: {3: 1.2}}),
        replace(of_lengths({3: 2.64}, ""), half_width=np.array([0.0, np.inf])),
    )
    found = str(Answer(advisor, plan(advisor, {8: 1.0})))
    assert "(no interval is known). If it does: K = 3." in found


@pytest.mark.parametrize(("low", "head"), [(1.7, ""), (0.9, "Not settled: ")])
def test_a_schedule_is_stated_by_batch(low, head):
    steps = planted({b: {2: 1.2, 5: 1.6} for b in (4, 8)})
    found = Answer(
        Advisor(steps, of_lengths({2: 2.2, 5: 3.0}, "")),
        DraftPlan(
            {4: 0.5, 8: 0.5},
            Gain(2, Estimate(1.2, 1.1, 1.3), "table"),
            schedule=(Range(1, 4, 5), Range(5, 8, 0)),
            schedule_gain=Estimate(1.9, low, 2.1),
        ),
    )
    assert str(found).startswith(
        f"{head}K = 5 at batch 1 to 4, plain decoding at batch 5 to 8: 1.90 times"
    )
    assert found.settled == (not head)


class TestEstimated:
    def test_an_estimate_is_a_break_even_and_no_speed_up(self):
        table = shipped_table(H200)
        found = answer(table, "3:2.64", "8:1")
        assert isinstance(found.advisor.steps, OfEstimate)
        cost_us = table.step_cost_us(8, min(table.axes.context))
        at = (cost_us[32] / cost_us[8] * 4.0**EXPONENT) ** 0.5
        assert str(found).startswith(
            f"Estimated, not measured: K = 3 pays where a step commits more than "
            f"{at:.2f} tokens ("
        )
        said = (
            " at batch 8. Yours commits 2.64: pays. The error is that of other servers."
        )
        assert str(found).endswith(said)
        assert "times plain decoding" not in str(found)

    def test_the_verdict_of_each_batch_is_said(self):
        table = shipped_table(H200)
        found = str(answer(table, "3:1.7", "1:1,64:1"))
        assert " at batch 1 and more than " in found
        assert "Yours commits 1.70: not settled. The error is that of" in found

    @pytest.mark.parametrize(("accept", "k"), [("0.7", 3), ("5:3", 5)])
    def test_a_measurement_of_the_stated_k_settles_it(self, accept, k):
        advisor = Advisor(Unserved(), *acceptance_of(accept))
        found = Answer(advisor, plan(advisor, {1: 1.0}, by_batch=False))
        assert found.to_settle.levels == k and f" at K = {k} is " in str(found)

    def test_other_servers_have_a_break_even_of_each_stated_k(self):
        advisor = Advisor(Unserved(), *acceptance_of("4:2.9,6:3.2"))
        found = str(Answer(advisor, plan(advisor, {1: 1.0}, by_batch=False)))
        evens = [f"{(k + 1) ** EXPONENT:.2f} at K = {k}" for k in (1, 3, 4, 5, 6, 7)]
        assert f" are {', '.join(evens)}." in found

    def test_without_table_and_run_other_servers_answer(self):
        [lengths] = acceptance_of("3:2.4")
        advisor = Advisor(Unserved(), lengths)
        found = str(Answer(advisor, plan(advisor, {1: 1.0}, by_batch=False)))
        evens = ", ".join(f"{(k + 1) ** EXPONENT:.2f} at K = {k}" for k in (1, 3, 5, 7))
        speed, factor = 2.4 / 4**EXPONENT, np.exp(ERROR)
        assert found.startswith(
            f"A step that verifies n tokens a request takes about n^{EXPONENT} plain "
            "steps at any batch (95 %: divide or multiply by "
            f"{factor:.2f}; public servers of MoE models). "
            f"Break-even accepted lengths are {evens}. Yours of 2.40 at K = 3 is "
            f"{speed:.2f} times plain decoding ({speed / factor:.2f} to "
            f"{speed * factor:.2f}): "
        )

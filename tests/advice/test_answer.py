"""The answer names a length, what it gains, where, and how sure that is."""

import numpy as np
import pytest

from evict_profile.advice.acceptance import of_lengths, of_rate
from evict_profile.advice.advise import Advisor, DraftPlan, Range, plan, traffic_of
from evict_profile.advice.answer import Answer
from evict_profile.records import replace
from tests.exported import shipped_table

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1"
K3 = of_lengths({3: 2.64}, "as given")


def answer(lengths, traffic):
    advisor = Advisor.of(shipped_table(H200), lengths)
    return Answer(advisor, plan(advisor, traffic_of(traffic)))


def test_the_gain_is_stated_with_its_span_and_its_interval():
    found = answer(K3, "4:1,8:1,16:1")
    speeds = {b: found.advisor.at(b).ways[1].speed for b in (4, 8, 16)}
    low, high = (3 / sum(1 / getattr(s, end) for s in speeds.values())
                 for end in ("low", "high"))  # fmt: skip
    assert str(found).startswith(f"K = 3: about {found.plan.gain:.2f} times plain")
    assert str(found).endswith(f"; 95 %: {low:.2f} to {high:.2f}.")
    for pick in (min, max):
        batch = pick(speeds, key=lambda b: speeds[b].value)
        assert f"{speeds[batch].value:.2f} at batch {batch}" in str(found)


@pytest.mark.parametrize(
    ("traffic", "split"), [("4:1,8:1", "equally"), ("4:.7,8:.3", "as given")]
)
def test_how_the_time_is_split_is_stated(traffic, split):
    assert f"if your time is split {split} over batches" in str(answer(K3, traffic))


def test_not_to_speculate_is_an_answer():
    found = str(answer(of_rate(0.05), "8:1"))
    assert found.startswith("Do not speculate: no draft length gains more than 1 %")


def test_too_few_prompts_leave_the_interval_unknown():
    lengths = replace(K3, half_width=np.array([0.0, np.inf]))
    found = str(answer(lengths, "8:1"))
    assert found.endswith("at batch 8; no interval is known.")


def test_a_schedule_is_stated_by_batch():
    advisor = Advisor.of(shipped_table(H200), of_lengths({2: 2.2, 5: 3.0}, ""))
    ranges = (Range(1, 4, 5), Range(5, 8, 2))
    made = DraftPlan({4: 0.5, 8: 0.5}, 2, 1.2, ranges, 1.9)
    found = str(Answer(advisor, made))
    assert found.startswith("K = 5 at batch 1 to 4, K = 2 at batch 5 to 8: about ")

"""What the claims of MoE-Spec are judged by, on made-up steps."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.claims.moe_spec import (
    Judged,
    fewer,
    kept,
    needed_experts,
    of_all_settings,
    recorded_so_far,
    wins,
)
from benchmarks.claims.routing_overhead import BothRouters, summaries
from evict_profile.errors import DataError
from examples.small_world.engine.budget_rivals import ORACLE
from examples.small_world.engine.budgets import MASS, NONE

PROMPTS = 8
KL = {(MASS, 8): 0.4, (MASS, 16): 0.1, (ORACLE, 8): 0.2, (ORACLE, 16): 0.05}


def step(rule, budget, prompt, given, **changed):
    row = {
        "rule": rule,
        "budget": budget,
        "workload": "code",
        "prompt": prompt,
        "given": given,
        "committed": 4,
        "us": 100.0,
        "kl": 4 * KL.get((rule, budget), 0.0) * (1.0 + 0.1 * (prompt % 2)),
        "agrees": 4,
        "excess_loss": 0.0,
    }
    return row | changed


def recording(**changed):
    """`changed` is of steps within a budget."""
    return pd.DataFrame(
        step(rule, budget, prompt, given, **changed if rule != NONE else {})
        for rule, budget in [(NONE, 64), *KL]
        for prompt in range(PROMPTS)
        for given in (False, True)
    )


def test_the_oracle_s_budget_is_read_off_a_line_of_logarithms():
    """A divergence of 0.1 lies half-way between 0.2 and 0.05."""
    judged = Judged(recording())
    needed = needed_experts(judged, 16, given=True)
    assert needed == pytest.approx(np.full_like(needed, 12.0))
    assert fewer(judged, True, 16) == "25 (25..25) %"


def test_below_the_oracle_s_smallest_budget_only_a_bound_is_known():
    steps = recording()
    steps.loc[steps["rule"] == ORACLE, "kl"] *= 0.1
    assert fewer(Judged(steps), True, 16) == "50 % or more"
    assert fewer(Judged(steps), True, 8) == "not known"


def test_a_quality_is_kept_at_the_worse_end_of_its_interval():
    assert kept(Judged(recording(us=50.0)), MASS, 8).startswith("+100.0 %")
    steps = recording(us=50.0)
    steps.loc[(steps["prompt"] < 2) & (steps["rule"] == MASS), "agrees"] = 3
    assert kept(Judged(steps), MASS, 8) == "not kept"


def test_speed_counts_no_token_that_the_target_would_not_commit():
    judged = Judged(recording(us=50.0, committed=8))
    assert judged.speed(MASS, 8) == pytest.approx(2.0)
    assert judged.tokens(MASS, 8) == pytest.approx(2.0)


def test_settings_that_are_faster_are_counted():
    faster, slower = (Judged(recording(us=us)) for us in (50.0, 200.0))
    assert wins([faster, slower], 8) == "1 of 2, surely 1"


def test_prompts_that_a_setting_lacks_are_left_out():
    steps = recording()
    lacks = (steps["rule"] == ORACLE) & (steps["prompt"] == 3) & steps["given"]
    kept = of_all_settings(steps[~lacks])
    assert set(kept["prompt"]) == set(range(PROMPTS)) - {3}
    assert len(kept) == len(steps) * (PROMPTS - 1) // PROMPTS


def test_a_folder_without_a_recording_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no recording; `make results` makes it"):
        recorded_so_far(tmp_path)


def test_an_overhead_is_beyond_the_model_s_own_routers():
    both = BothRouters(lambda *_: None, own_us=10.0, others_us=15.0)
    samples = {"any": [both.sample(100.0)] * 8}
    [found] = summaries(samples, "here")
    assert found.share.value == pytest.approx(0.05)
    assert found.whole == pytest.approx(0.15)
    assert found.layers_ms == pytest.approx(0.1)

"""A comparison: everyone is there, and baselines are as strong as they can be."""

import numpy as np
import pytest

from evict_profile.replay import policies
from evict_profile.replay.compare import BASELINES, MIXED, ScenarioReplay, parts
from evict_profile.replay.comparison import Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import AR, BEST_PAIR, FULL_TREE, Fixed
from evict_profile.replay.simulate import ReplayRun, StepTimes, simulate
from evict_profile.replay.sums import COLUMNS, sums_by_prompt, tokens_per_s
from evict_profile.stats import WORTHWHILE
from evict_profile.traces.resampling import MIN_PROMPTS
from tests.traces.synthetic import Plan, make_trace


@pytest.fixture(scope="module", params=[1, 3])
def replay(request, arrays, table):
    return ScenarioReplay(arrays, table, Scenario(MIXED, 0.0, request.param), seeds=2)


@pytest.fixture(scope="module")
def comparison(replay):
    return replay.compare()


def test_a_comparison_has_every_policy(comparison):
    """Plain decoding commits a token a step."""
    names = [each.policy for each in comparison.results]
    found = [AR, FULL_TREE, policies.BEST_WIDTH, BEST_PAIR]
    found += [policies.PAIR_CONDITIONAL, *policies.GUIDED, policies.ORACLE]
    assert names == found
    plain = comparison.of(AR)
    assert (plain.committed.value, plain.verified.value) == (1.0, 1.0)
    assert (plain.depth.value, plain.draft_us.value) == (0.0, 0.0)


def test_no_fixed_tree_beats_the_best_pair(replay, comparison):
    """Of all widths and depths, to within what skipping some widths can miss."""
    best = max(
        replay.run(Fixed("", depth, width), seed=0).tokens_per_s
        for depth in (1, 2, 3, 4)
        for width in range(2, 26)
    )
    assert comparison.best.tokens_per_s >= 0.99 * best
    deepest = [point for point in comparison.fixed if point.depth == 4]
    assert comparison.best_width == max(deepest, key=lambda point: point.tokens_per_s)


def test_the_strongest_setting_is_the_fastest_that_knows_no_cost(comparison):
    """Within the one per cent for which a simpler one is taken."""
    known = map(comparison.of, policies.ONE_SETTING)
    fastest = max(each.tokens_per_s.value for each in known)
    own = comparison.of(comparison.strongest.policy)
    assert own.tokens_per_s.value * WORTHWHILE >= fastest
    assert comparison.adaptive.over[own.policy].value == pytest.approx(
        comparison.adaptive.tokens_per_s.value / comparison.strongest.tokens_per_s.value
    )


def test_the_flags_of_the_rate_are_those_of_the_plug_in(comparison, table):
    """Whole trees, which it cuts; no plug-in follows the ratio."""
    whole = comparison.of(policies.RATE).served_by
    assert whole.startswith(f"EVICT_PROFILE_TABLE={table.path} --speculative-num-steps")
    assert whole.endswith("--speculative-num-draft-tokens 25")
    assert not comparison.of(policies.RATIO).served_by


def test_ratios_are_those_of_the_throughputs(comparison):
    for each in comparison.results:
        assert set(each.over) == {*BASELINES} - {policies.SCHEDULE}
        for name in each.over:
            ratio = each.tokens_per_s.value / comparison.of(name).tokens_per_s.value
            assert each.over[name].value == pytest.approx(ratio)
    own = comparison.of(BEST_PAIR).over[BEST_PAIR]
    assert (own.low, own.value, own.high) == (1.0, 1.0, 1.0)


def test_what_was_chosen_here_is_told_less_its_optimism(comparison):
    """Its throughput, not its steps; whoever was not chosen keeps its own."""

    def as_replayed(each):
        step_us = each.step_us.value / comparison.scenario.batch
        return 1e6 * each.committed.value / step_us

    for name in (AR, FULL_TREE, policies.RATE):
        plain = comparison.of(name)
        assert plain.tokens_per_s.value == pytest.approx(as_replayed(plain))
    for each in (comparison.of(BEST_PAIR), comparison.strongest, comparison.adaptive):
        assert each.tokens_per_s.value < 0.9999 * as_replayed(each)


def test_a_step_is_the_sum_of_its_parts(comparison):
    """The interval of a cost is told last."""
    for each in comparison.results:
        parts_us = (each.verify_us, each.draft_us, each.fixed_us)
        assert sum(part.value for part in parts_us) == pytest.approx(each.step_us.value)
        assert each.verified.low <= each.verified.value <= each.verified.high
    told = [each for each in comparison.caveats if "% interval of" in each]
    assert told == [comparison.caveats[-1]]
    assert f"a cost at batch {comparison.scenario.batch} has" in told[0]


def test_too_few_prompts_are_a_caveat(table):
    few = make_trace(Plan(prompts=MIN_PROMPTS - 1, tokens=4, workloads=("code",)))
    replay = ScenarioReplay(TraceArrays(few), table, Scenario("code", 0.0, 1), 1)
    assert "4 prompts are too few for intervals" in replay.compare().caveats[0]


def test_parts_are_workloads_and_their_mix(trace):
    cold = [("code", 0.0), ("prose", 0.0), (MIXED, 0.0)]
    assert [part[1:] for part in parts(trace)] == cold
    plan = Plan(prompts=2, tokens=4, workloads=("code",), temperatures=(0.0, 1.0))
    one = parts(make_trace(plan))
    assert [part[1:] for part in one] == [("code", 0.0), ("code", 1.0)]


def test_an_order_changes_nothing_for_one_that_learns_nothing(arrays, table):
    """Alone in its batch; so it is walked once for all seeds."""
    replay = ScenarioReplay(arrays, table, Scenario(MIXED, 0.0, 1), seeds=2)
    runs = [replay.run(Fixed("", 2, 6), seed) for seed in range(2)]
    assert runs[0].tokens_per_s == pytest.approx(runs[1].tokens_per_s, rel=1e-12)


def test_sums_by_prompt_add_up_to_the_run(arrays, table):
    costs = StepTimes(table, arrays, 3)
    run = simulate(arrays, policies.full_tree(24, 4), costs, 3, seed=0)
    by_prompt = sums_by_prompt(arrays, run, costs.undrafted_us)
    whole = dict(zip(COLUMNS, by_prompt.sum(axis=0), strict=True))
    assert tokens_per_s(whole) == pytest.approx(run.tokens_per_s)
    assert whole["committed"] == run.tokens
    assert whole["us"] == pytest.approx(run.step_us.sum())
    assert whole["requests"] == run.rows.size
    assert whole["step_us"] == pytest.approx(3 * run.step_us.sum())


@pytest.mark.parametrize(
    ("verified", "us"),
    [((4, 1), (39.0, 19.0)), ((3, 2), (32.3333, 25.6667)), ((1, 1), (29.0, 29.0))],
)
def test_a_request_pays_for_its_own_draft_tokens(arrays, table, verified, us):
    """And as much as any other for the step that runs without them."""
    one = np.flatnonzero(np.diff(arrays.prompt[arrays.reply]))[0]
    step = ReplayRun(
        rows=np.array([[one, one + 1]]),
        counted=np.array([[1, 1]]),
        accepted=np.array([[0, 0]]),
        verified=np.array([verified]),
        depth=np.array([2]),
        cost=np.array([[50.0, 6.0, 2.0, 9.0]]),
    )
    found = sums_by_prompt(arrays, step, undrafted_us=30.0)[:, COLUMNS.index("us")]
    owners = arrays.prompt[arrays.reply[step.rows[0]]]
    assert found[owners] == pytest.approx(us, rel=1e-4)

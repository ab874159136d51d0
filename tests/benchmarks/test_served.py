"""The record of served runs: what is judged, and what the package took from it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from benchmarks.served import __main__ as served
from benchmarks.served import judge, own, record, rivals, unions
from evict_profile.advice.acceptance import of_yaml
from evict_profile.io import data_root
from evict_profile.stats import student
from evict_profile.table.overheads import RECORD, TWO_SIDED, UNSEEN_GROWTH


def test_the_shipped_overheads_are_those_of_the_record():
    fitted = asdict(judge.of_all().amounts)
    for name, value in asdict(RECORD.amounts).items():
        assert value == pytest.approx(fitted[name], rel=0.01), name


def test_the_shipped_error_is_that_of_the_record():
    """Of held-out predictions, by Student's t of three deployments."""
    rows = judge.speedups(judge.held_out())
    found = served.growth_rms(rows) * student(rows["deployment"].nunique()) / TWO_SIDED
    assert RECORD.growth == pytest.approx(found, abs=0.01)


def test_the_error_elsewhere_is_that_of_the_servers_that_nothing_was_fitted_to():
    """With two sets of runs that the repository does not hold, 0.58 and 0.89."""
    own = [served.growth_rms(rows) for _, rows in judge.elsewhere().groupby("server")]
    every = np.square([*own, 0.58, 0.89])
    assert pytest.approx(np.sqrt(every.mean()), abs=0.05) == UNSEEN_GROWTH


def test_the_file_of_findings_is_what_the_benchmark_finds():
    """README, the claims and the page read that file (tests/test_claims.py)."""
    rows, away = judge.speedups(judge.held_out()), judge.elsewhere()
    kept = Path(__file__).parents[2] / "docs/research/data/served.json"
    found = served.findings(rows, away)
    assert found == pytest.approx(json.loads(kept.read_text()), abs=0.11)


def test_identical_tokens_are_the_table_at_the_experts_of_one_token():
    """Verification still reads attention's weights and computes each token."""
    name = "qwen3-30b-a3b"
    runs = record.deployments()[name].runs
    found = rivals.step_ratios(name, runs, RECORD)
    free = 1.0 + RECORD.amounts.round_us / runs[0].step_us
    assert (found["identical tokens"] > free).all()


def test_one_parameter_is_found_again():
    """Of served steps that grow by exactly so much a token."""
    plain = record.ServedRun(8, 1, 0, 1, 1.0, 800.0, 1024.0)
    grown = [
        record.ServedRun(8, n, n - 1, 1, 2.0, 1600.0 / (1.0 + 0.2 * (n - 1)), 1024.0)
        for n in (4, 6, 8)
    ]
    deployment = record.Deployment(record.table_of(record.QWEN_30B), (plain, *grown))
    assert rivals.one_parameter({"planted": deployment}) == pytest.approx(0.2, rel=1e-3)


def test_a_deployment_does_not_teach_what_judges_it(monkeypatch):
    seen, errors = [], []

    def fitted(given, prior, source):
        seen.append(given)
        return prior

    monkeypatch.setattr(judge, "fit_overheads", fitted)
    monkeypatch.setattr(
        judge, "growth_error", lambda given, _: errors.append(given) or 0.1
    )
    known = record.deployments()
    names = [name for name in known if name not in record.DENSE.values()]
    assert list(judge.held_out()) == names
    assert errors == seen
    for name, others in zip(names, seen, strict=True):
        assert known[name].runs not in [each.runs for each in others]
        assert len(others) == len(known) - 1


def test_the_example_has_the_medians_of_its_texts():
    rows = record.specbundle()
    own = rows[(rows["model"] == "Qwen3-30B-A3B-Instruct-2507") & (rows["topk"] == 1)]
    medians = own.groupby("steps")[["accept_length", "speedup"]].median()
    found = of_yaml(data_root() / "examples/specbundle-qwen3-30b-a3b.yaml")
    assert found.committed[1:] == pytest.approx(medians["accept_length"], abs=5e-4)
    assert list(found.served.values()) == pytest.approx(medians["speedup"], abs=5e-4)


def test_prefill_does_not_get_faster_by_drafting():
    wall = judge.wall(np.array([2.0, 2.0]), np.array([0.0, 0.5]))
    assert wall == pytest.approx([2.0, 4.0 / 3.0])


def test_decoding_speed_ups_lead_back_to_what_was_served():
    rows = record.specbundle()
    wall = judge.wall(rows["decode_speedup"].to_numpy(), rows["outside"].to_numpy())
    assert wall == pytest.approx(rows["speedup"].to_numpy())


def test_a_choice_of_the_best_loses_nothing():
    rows = record.specbundle()
    assert judge.regret(rows, lambda group: group["speedup"].idxmax()).max() == 0.0


def of(deployment, predicted, stays):
    rows = {"deployment": deployment, "predicted": predicted, "stays": stays}
    return pd.DataFrame(rows | {"speedup": 1.0}, index=range(3))


def test_a_difference_counts_each_deployment_once_and_resamples_deployments():
    few = [of(str(n), 1.0, np.exp(0.1)) for n in range(4)]
    many = of("many", np.exp(0.2), 1.0)
    found = own.difference(pd.concat([*few, *[many] * 5]))
    assert found.value == pytest.approx((4 * -0.1 + 0.2) / 5)
    assert found.low < -0.1 < 0.1 < found.high
    assert own.difference(pd.concat(few)).low == -np.inf


def test_a_share_is_chosen_by_the_other_deployments(monkeypatch):
    """The first one's own share would be 1; two others predict best with 0.25."""

    def predicted(_, share):
        best = {"first": 1.0, "second": 0.25, "third": 0.25}
        return pd.concat([of(k, np.exp(share - v), 1.0) for k, v in best.items()])

    monkeypatch.setattr(own, "of_specbundle", predicted)
    assert own.shares_chosen({})["first"] == 0.25


def test_a_share_of_nothing_keeps_the_measured_ratio():
    """At the same batch: the rival is one end of the shares."""
    rows = own.of_specbundle(judge.held_out(), share=0.0)
    assert rows["predicted"].to_numpy() == pytest.approx(rows["stays"], rel=1e-6)


def test_other_batches_are_at_most_twice_or_half_as_large():
    assert len(own.elsewhere()) == 28
    assert len(own.elsewhere(near=True)) == 2 * (2 * 2 * 2 + 2 * 2 * 4)


def test_two_exponents_of_a_model_hold_its_traced_unions():
    """Within 5 % at 2, 4 and 8 tokens, accepted or not, and better than a share."""
    found = unions.judged()
    for model, off in found["its trace"].items():
        assert np.abs(off).max() < 0.05, model
        assert np.abs(off).max() < np.abs(found["its trace, one share"][model]).max()


def test_exponents_from_two_tokens_hold_longer_steps():
    for model, off in unions.judged()["its trace at two tokens"].items():
        assert np.abs(off).max() < 0.08, model


def test_the_record_s_share_is_that_of_the_traced_models():
    """The record and the traces know nothing of each other."""
    shares = [unions.share_of(rows).share for rows in unions.models().values()]
    assert RECORD.amounts.union_share == pytest.approx(np.mean(shares), abs=0.03)
    assert np.std(shares, ddof=1) < 0.12


@pytest.mark.parametrize(("batch", "error"), [(1, UNSEEN_GROWTH), (8, RECORD.growth)])
def test_the_interval_has_room_for_the_union_of_another_model(batch, error):
    """Its error is of growth, of which the union is a part."""
    deployments = (*dict(record.COMPOSED.values()), record.GPT_OSS)
    assert unions.growth_error(deployments, batch) < error / 2.0


@given(
    reuse=st.floats(0.5, 1.0),
    evenness=st.floats(0.8, 1.0),
    accept=st.floats(0.0, 1.0),
    tokens=st.integers(1, 16),
    batch=st.integers(1, 64),
)
def test_reuse_and_acceptance_lower_a_union(reuse, evenness, accept, tokens, batch):
    """One token activates its k experts, and no step more than uniform routing."""
    known, uniform = unions.UnionGrowth(reuse, evenness), unions.UnionGrowth(1.0, 1.0)
    asked = (128, 8, tokens, accept, batch)
    assert 8.0 - 1e-9 <= known.union(*asked) <= uniform.union(*asked) + 1e-9
    assert known.union(128, 8, tokens, 1.0, batch) <= known.union(*asked) + 1e-9
    assert known.union(128, 8, 1, accept) == pytest.approx(8.0)


@pytest.fixture(scope="module")
def plain_known():
    return own.plain_alone(judge.held_out())


def test_a_plain_step_divides_growth_by_what_the_host_takes(plain_known):
    """As `OwnStep.of_plain` has it, the frame's ratio leads back to the prediction."""
    away = plain_known[plain_known["deployment"].isna()]
    grown = (away["ratio"] - 1.0) * away["plain"].clip(lower=1.0)
    assert grown.to_numpy() == pytest.approx(judge.elsewhere()["ratio"] - 1.0, rel=1e-3)


def test_servers_that_draft_as_the_record_choose_the_plain_rule(plain_known):
    """For each, by the others; a draft model of its own takes longer than levels."""
    levels = plain_known[~own.has_draft_model(plain_known)]
    assert set(own.rules_chosen(levels)) == {(1.0, 0.0)}

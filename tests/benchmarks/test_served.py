"""The record of served runs: what is judged, and what the package took from it."""

import numpy as np
import pytest
from msgspec.structs import asdict

from benchmarks.served import judge, record
from evict_profile.advice.acceptance import of_yaml
from evict_profile.io import data_root
from evict_profile.table.overheads import RECORD


def test_the_shipped_overheads_are_those_of_the_record():
    fitted = asdict(judge.of_all().amounts)
    for name, value in asdict(RECORD.amounts).items():
        assert value == pytest.approx(fitted[name], rel=0.01), name


def test_the_shipped_error_is_that_of_the_record():
    found = judge.growth_error(record.deployments().values(), RECORD.amounts)
    assert RECORD.growth == pytest.approx(found, abs=0.01)


def test_a_deployment_does_not_teach_what_judges_it(monkeypatch):
    seen = []
    errors = []

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
    for name, given in zip(names, seen, strict=True):
        assert known[name].runs not in [each.runs for each in given]
        assert len(given) == len(known) - 1


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

"""SGLang's own loader of cost tables and its budget, on the files exported for it."""

import json
import re

import numpy as np
import pytest

from evict_profile.fit.export import make_table
from evict_profile.integrations.exporters import write_format
from evict_profile.records import replace
from evict_profile.served.step import ServedStep
from tests.exported import sglang_reads_us
from tests.factories import DRAFTING


@pytest.fixture(scope="module")
def table(fitted):
    """Batches 1 and 2; the steps of two requests wobble, and are no exact sum."""
    made = make_table(fitted, samples_sha256="")

    def wobbling(stairs):
        wobble = 1.0 + 0.03 * np.cos(np.arange(len(stairs.step_cost_us)))
        costs = stairs.low_us, stairs.step_cost_us, stairs.high_us
        low, cost, high = (tuple(wobble * us) for us in costs)
        return replace(stairs, low_us=low, step_cost_us=cost, high_us=high)

    stairs = tuple(wobbling(s) if s.batch == 2 else s for s in made.staircases)
    return replace(made, drafting=DRAFTING, staircases=stairs)


@pytest.fixture
def exported(table, tmp_path):
    """The file's path and its notes."""
    path = tmp_path / "sps.json"
    return path, write_format(table, "sglang-sps", path, 3).notes


def loaded(path):
    from sglang.srt.speculative.dspark_components import dspark_sps

    found = dspark_sps.load_sps_table_from_path(str(path))
    assert isinstance(found, dspark_sps.SpsAdditiveCostTable)
    assert not dspark_sps.is_uninitialized_sps_table(found)
    return found


def test_its_reader_finds_every_step_within_the_stated_error(table, exported):
    path, notes = exported
    [stated] = re.findall(r"within ([\d.]+)% of this table", " ".join(notes))
    assert 0.0 < float(stated) < 3.0
    found, served = loaded(path), ServedStep.of(table)
    for batch in (1, 2):
        steps_us = table.step_cost_us(batch, 64) + served.beside_us(batch, 3)
        for tokens in range(batch, len(steps_us)):
            read_s = found.step_time(num_reqs=batch, budget=tokens - batch)
            off = abs(1e6 * read_s / steps_us[tokens] - 1.0)
            assert 100.0 * off <= float(stated) + 0.05


def test_its_reader_reads_as_the_tests_do(exported):
    path, _ = exported
    found, fields = loaded(path), json.loads(path.read_text(encoding="utf-8"))
    for batch in (1, 2, 3, 9):
        for tokens in range(batch, 50):
            read_s = found.step_time(num_reqs=batch, budget=tokens - batch)
            assert 1e6 * read_s == pytest.approx(sglang_reads_us(fields, batch, tokens))


def test_its_budget_is_the_best_by_the_table(table, exported):
    """Of two requests, each of whose drafts is kept if that one before it is."""
    import torch
    from sglang.srt.speculative.dspark_components import dspark_planner

    survival = np.array([[0.9, 0.24, 0.05], [0.8, 0.16, 0.01]])
    decided = dspark_planner.compute_verify_token_budget(
        history_survival_probs=torch.tensor(survival),
        sps_table=loaded(exported[0]),
        cfg=dspark_planner.DSparkScheduleConfig(gamma=3),
    )
    drafts = np.sort(survival.ravel())[::-1]
    committed = 2.0 + np.append(0.0, np.cumsum(drafts))
    step_us = table.step_cost_us(2, 64)[2:9] + ServedStep.of(table).beside_us(2, 3)
    assert decided.budget == np.argmax(committed / step_us)
    assert 0 < decided.budget < 6

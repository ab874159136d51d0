"""A table's curves reach vLLM's own manager, or its own stay and a line says why."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evict_profile.errors import DataError
from evict_profile.integrations.vllm import checks, plugin
from evict_profile.records import replace
from evict_profile.table import CostTable
from tests.factories import DRAFTING
from tests.vllm.server import CAPTURED, drafts_kept, make_manager, make_runner


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    import torch
    from vllm.distributed import parallel_state
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification

    group = SimpleNamespace(broadcast_object=lambda found, src: found)
    monkeypatch.setattr(parallel_state, "get_tp_group", lambda: group)
    monkeypatch.setattr(adaptive_verification, "get_tp_group", lambda: group)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a test")


@pytest.fixture
def table_path(saved_table, tmp_path):
    """The known run as if vLLM had been measured, up to 32 tokens."""
    table = CostTable.load(saved_table)
    key = replace(table.key, engine="vllm", engine_version=checks.installed())
    path = tmp_path / "vllm.json"
    replace(table, key=key).save(path)
    return path


def test_the_budget_is_decided_by_the_table(table_path):
    """vLLM's flat curve keeps all drafts; the table's trims what hardly counts."""
    manager, table = make_manager(), CostTable.load(table_path)
    doubtful = [[0.9, 0.3, 0.2]] * 2
    assert drafts_kept(manager, doubtful) == 6
    told = plugin.use_table(make_runner(manager, table.model), table_path)
    assert "vLLM verifies by" in told
    cost_ms = table.costs(1, 64).step_cost_us / 1e3
    for tokens in (*CAPTURED, 3, 7):
        assert manager.cost_tables[1][tokens] == pytest.approx(cost_ms[tokens])
    assert manager.cost_tables[0][1] == pytest.approx(0.5), "vLLM's own draft curve"
    assert 0 <= drafts_kept(manager, doubtful) < 6


def test_a_measured_clock_replaces_vllms_draft_curve(table_path):
    table = replace(CostTable.load(table_path), drafting=DRAFTING)
    table.save(table_path)
    manager = make_manager()
    plugin.use_table(make_runner(manager, table.model), table_path)
    assert manager.cost_tables[0][1] == pytest.approx((450.0 + 40.0) / 1e3)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"hidden": 7}, "hidden size"),
        ({"tp": 2}, "tp: 2 here, 1 there"),
        ({"requests": 64}, "the engine will ask for up to 256"),
        ({"curves": ([], [(1, 5.0)])}, "Adaptive verification could not"),
        ({"path": "gone.json"}, "gone.json"),
    ],
)
def test_any_doubt_leaves_vllms_curves(table_path, caplog, monkeypatch, facts, why):
    """Also curves that vLLM refuses, over which its server does not fall."""
    if curves := facts.get("curves"):
        monkeypatch.setattr(checks, "curves_for", lambda *asked: curves)
    manager = make_manager(facts.get("requests", 4))
    before = manager.cost_tables
    runner = make_runner(manager, CostTable.load(table_path).model, **facts)
    path = table_path.with_name(facts.get("path", table_path.name))
    with caplog.at_level(logging.WARNING, "evict_profile.vllm"):
        told = plugin.use_table(runner, path)
    assert told.startswith("evict-profile: off, vLLM keeps its own curves: ")
    assert why in told and told in caplog.text
    assert manager.cost_tables is before


def test_a_table_of_other_graphs_is_refused(table_path):
    table = CostTable.load(table_path)
    axes = replace(table.axes, capture_sizes=(1, 2, 5))
    with pytest.raises(DataError, match=r"captured none of \[5\]"):
        checks._check_graphs(replace(table, axes=axes), CAPTURED)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"adaptive_verification": None}, "adaptive verification is off"),
        ({}, "adaptive verification is off"),
        ({"device": torch.device("cpu")}, "start vLLM on a GPU"),
    ],
)
def test_nothing_happens_without_adaptive_verification(table_path, caplog, facts, why):
    """It is off, or the model runner is V1, which has none."""
    runner = SimpleNamespace(**{"device": torch.device("cuda"), **facts})
    assert why in plugin.use_table(runner, table_path)
    assert "unexpected" not in caplog.text


def test_the_entry_point_wraps_a_worker_once_and_only_when_asked(
    table_path, monkeypatch
):
    """The worker takes the table after it warmed up; the call's result is kept."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = WorkerWrapperBase.init_device
    monkeypatch.setattr(WorkerWrapperBase, "init_device", original)
    monkeypatch.delenv("EVICT_PROFILE_TABLE", raising=False)
    plugin.register()
    assert WorkerWrapperBase.init_device is original
    monkeypatch.setenv("EVICT_PROFILE_TABLE", str(table_path))
    plugin.register()
    wrapped = WorkerWrapperBase.init_device
    plugin.register()
    assert WorkerWrapperBase.init_device is wrapped is not original

    manager = make_manager()
    runner = make_runner(manager, CostTable.load(table_path).model)
    worker = SimpleNamespace(model_runner=runner)
    worker.compile_or_warm_up_model = lambda: "warm"
    plugin.after_init(lambda self: None, table_path)(SimpleNamespace(worker=worker))
    before = manager.cost_tables
    assert worker.compile_or_warm_up_model() == "warm"
    assert not np.array_equal(manager.cost_tables[1], before[1])


def test_the_extension_adds_to_vllms_worker_without_a_clash():
    from vllm.v1.worker.worker_base import WorkerBase

    added = [n for n in dir(plugin.EvictProfileWorker) if not n.startswith("__")]
    assert added == ["use_evict_profile_table"]
    assert not hasattr(WorkerBase, added[0])

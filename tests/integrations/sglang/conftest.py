"""A server that is none: fake modules of SGLang, a fake model, tables of it."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from evict_profile.fit.export import export_workload, make_table, with_workload
from evict_profile.integrations.environment import Settings
from evict_profile.integrations.sglang import compat, observer
from evict_profile.table import CostTable
from evict_profile.table.document import file_sha256
from tests.factories import ACCEPTANCE, ACTIVATION, DRAFTING
from tests.integrations.sglang.server import (
    Context,
    HookRegistry,
    Worker,
    modules,
    start,
)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "evict_profile.sglang")
    return caplog


class Idle:
    """The writers' threads, which wait until they are told that time has gone by."""

    def __init__(self, monkeypatch):
        self.targets: list[Callable[[], None]] = []
        self._later_s = 0.0
        self.time = SimpleNamespace(**{**vars(time), "sleep": self._sleep})
        self._awake = False
        monkeypatch.setattr(observer, "time", self.time)
        threads = SimpleNamespace(**{**vars(threading), "Thread": self._thread})
        monkeypatch.setattr(observer, "threading", threads)

    def now(self, later_s=0.0):
        self._later_s += later_s
        at = time.monotonic() + self._later_s
        self.time.monotonic = lambda: at
        for target in self.targets:
            self._awake = False
            with suppress(InterruptedError):
                target()

    def _sleep(self, seconds):
        if self._awake:
            raise InterruptedError
        self._awake = True

    def _thread(self, target, daemon):
        assert daemon, "a server must be able to end"
        return SimpleNamespace(start=lambda: self.targets.append(target))


@pytest.fixture
def idle(monkeypatch):
    return Idle(monkeypatch)


@pytest.fixture
def sglang(monkeypatch, idle):
    context = Context()
    modules(monkeypatch, context)
    HookRegistry._patched, HookRegistry.registered = set(), {}
    version = metadata.version
    monkeypatch.setattr(
        metadata,
        "version",
        lambda name: "0.5.20" if name == "sglang" else version(name),
    )
    return context


@pytest.fixture
def worker(sglang):
    return Worker()


@pytest.fixture(scope="session")
def table_files(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "1.0.0.json"
    samples = path.with_suffix(".parquet")
    fitted.frame.to_parquet(samples, index=False)
    table = make_table(fitted, file_sha256(samples))
    table.save(path)
    full = with_workload(table, ACCEPTANCE, ACTIVATION, DRAFTING)
    return path, export_workload(full, path)[1]


@pytest.fixture(scope="session")
def plain_table(table_files):
    """Verification alone: batches 1 and 2, contexts 64 to 256, 16 wide."""
    return CostTable.load(table_files[0])


@pytest.fixture(scope="session")
def full_table(table_files):
    return CostTable.load(table_files[1])


@pytest.fixture
def serves(sglang, monkeypatch):
    """Starts a worker whose server reads a given table; see `server.start`."""

    def started(table, *runner, **settings):
        monkeypatch.setattr(compat, "load_matching_table", lambda *asked: table)
        return start(Settings("on", table=Path("t.json"), **settings), *runner)

    return started

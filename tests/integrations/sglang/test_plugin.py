"""The entry point does nothing unless asked, and then only registers hooks."""

import logging
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang import plugin, worker
from evict_profile.integrations.sglang.plugin import Plugin, register
from evict_profile.integrations.sglang.settings import Settings
from tests.integrations.sglang.server import (
    Context,
    EAGLEWorkerV2,
    HookRegistry,
    Worker,
)

HOOKED = [
    "sglang.srt.speculative.eagle_worker_v2.build_eagle_verify_input",
    "sglang.srt.speculative.eagle_worker_v2.organize_draft_results",
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
]
ROUTER = "sglang.srt.layers.moe.topk.select_experts"
NAMES = ("TABLE", "MODE", "TRACES", "EXPERT_BUDGET", "LADDER")
LOADED = """
import sys
{before}
before = set(sys.modules)
from evict_profile.integrations.sglang.plugin import register
{call}
print(*(set(sys.modules) - before))
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that asks for nothing."""
    for name in NAMES:
        monkeypatch.delenv(f"EVICT_PROFILE_{name}", raising=False)
    return monkeypatch


def loaded(before: str = "", call: str = "") -> set[str]:
    """Modules that another process has after importing the entry point."""
    code = LOADED.format(before=before, call=call)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return set(done.stdout.split())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_off_imports_nothing_of_sglang() -> None:
    found = loaded(call="register()")
    assert not {name for name in found if name.split(".")[0] == "sglang"}


def test_it_is_light() -> None:
    """Every process of a server imports it, and SGLang brings all of that."""
    found = {name.split(".")[0] for name in loaded("import torch, numpy.random")}
    foreign = found - set(sys.stdlib_module_names)
    assert foreign <= {"evict_profile", "torch", "numpy", "msgspec"}


def test_off_registers_nothing(sglang: Context) -> None:
    register()
    assert not HookRegistry.registered


def test_a_table_registers_the_hooks(
    sglang: Context, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("EVICT_PROFILE_TABLE", "none.json")
    register()
    assert sorted(HookRegistry.registered) == HOOKED


def test_observing_hooks_the_router_too(
    sglang: Context, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("EVICT_PROFILE_MODE", "observe")
    environment.setenv("EVICT_PROFILE_TRACES", "seen")
    register()
    assert sorted(HookRegistry.registered) == sorted([*HOOKED, ROUTER])


def test_a_budget_hooks_the_router(
    sglang: Context, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("EVICT_PROFILE_TABLE", "none.json")
    environment.setenv("EVICT_PROFILE_EXPERT_BUDGET", "8")
    register()
    hook = HookRegistry.registered[ROUTER]
    assert hook.__self__.budget.budget == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [("MODE", "sometimes"), ("MODE", "on"), ("LADDER", "2,x"), ("EXPERT_BUDGET", "0")],
)
def test_a_bad_environment_registers_nothing(
    sglang: Context,
    environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
) -> None:
    environment.setenv(f"EVICT_PROFILE_{name}", value)
    register()
    (said,) = warnings(caplog)
    assert said.startswith("evict-profile: off, nothing was changed: EVICT_PROFILE_")
    assert name in said
    assert not HookRegistry.registered


def test_an_unknown_version_registers_nothing(
    sglang: Context,
    environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment.setenv("EVICT_PROFILE_TABLE", "table.json")
    environment.setattr(metadata, "version", lambda name: "0.6.0")
    register()
    (said,) = warnings(caplog)
    assert "SGLang 0.6.0 is not supported; install one of 0.5.16" in said
    assert not HookRegistry.registered


def made(mode: str = "on") -> Plugin:
    """A plug-in whose hooks are called by hand."""
    return Plugin(Settings(mode))


def algorithm(eagle3: bool, name: str = "EAGLE3") -> Any:
    """One of SGLang's algorithms."""
    return SimpleNamespace(name=name, is_eagle3=lambda: eagle3)


def test_eagle3_gets_a_truncating_worker(sglang: Context) -> None:
    own = made()
    found = own.create_worker(lambda *args: EAGLEWorkerV2, algorithm(True), "args")
    assert issubclass(found, EAGLEWorkerV2) and found is not EAGLEWorkerV2
    worker_of = found()
    assert worker_of.evict_profile is own.serving
    assert worker_of.evict_profile.worker is worker_of


@pytest.mark.parametrize(("base", "eagle3"), [(Worker, True), (EAGLEWorkerV2, False)])
def test_other_workers_are_left_alone(
    sglang: Context, caplog: pytest.LogCaptureFixture, base: type, eagle3: bool
) -> None:
    """And that is said."""
    found = made().create_worker(lambda *args: base, algorithm(eagle3, "NEXTN"), "args")
    assert found is base
    (said,) = warnings(caplog)
    runs = f"NEXTN runs {base.__name__}, and only EAGLE3 is cut"
    assert said == f"evict-profile: off, nothing was changed: {runs}"


def test_trees_are_built_as_ever_without_a_worker(sglang: Context) -> None:
    found = made().build_verify_input(lambda *args, **kw: (args, kw), 1, 2, topk=3)
    assert found == ((1, 2), {"topk": 3})


def test_trees_are_cut_with_a_worker(
    sglang: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = made()
    own.begin(Worker())
    called = []
    monkeypatch.setattr(worker, "build_verify_input", lambda *args: called.append(args))
    own.build_verify_input("original", "batch")
    assert called == [("original", own.serving, "batch")]


def test_every_hook_is_required_at_the_start(sglang: Context) -> None:
    for mode, hooked in (("on", HOOKED), ("observe", [*HOOKED, ROUTER])):
        own = made(mode)
        HookRegistry._patched = set()
        for target in sorted(hooked):
            with pytest.raises(ConfigError, match=target):
                plugin_hooks(own)
            HookRegistry._patched = HookRegistry._patched | {target}
        plugin_hooks(own)


def plugin_hooks(own: Plugin) -> None:
    """The check that a new worker makes of its hooks."""
    plugin_checks = sys.modules["evict_profile.integrations.sglang.compat"]
    plugin_checks.check_hooks(own.begin(Worker())._needed)


def test_the_entry_point_is_declared() -> None:
    found = metadata.entry_points(group="sglang.srt.plugins")
    if not found:
        pytest.skip("evict-profile is installed from before it had the plug-in")
    (entry,) = [each for each in found if each.name == "evict_profile"]
    assert entry.load() is plugin.register

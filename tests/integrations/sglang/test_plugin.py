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
from evict_profile.integrations.sglang.compat import check_hooks
from evict_profile.integrations.sglang.plugin import Plugin, register
from evict_profile.integrations.sglang.settings import VARIABLES, Settings
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
OFF = "evict-profile: off, nothing was changed: "
Patch = pytest.MonkeyPatch
LOADED = """
import sys
import torch, numpy.random
before = set(sys.modules)
from evict_profile.integrations.sglang.plugin import register
register()
print(*(set(sys.modules) - before))
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: Patch) -> Patch:
    """An environment that asks for nothing."""
    for name in VARIABLES:
        monkeypatch.delenv(f"EVICT_PROFILE_{name.upper()}", raising=False)
    return monkeypatch


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_it_is_light() -> None:
    """Every process of a server imports it: it brings nothing that SGLang does not, and
    unless it is asked nothing of SGLang."""
    words = [sys.executable, "-c", LOADED]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = {name.split(".")[0] for name in done.stdout.split()}
    assert not done.stderr
    foreign = found - set(sys.stdlib_module_names)
    assert foreign <= {"evict_profile", "torch", "numpy", "msgspec"}


@pytest.mark.parametrize(
    ("variables", "hooked"),
    [
        ({}, []),
        ({"TABLE": "none.json"}, HOOKED),
        ({"TABLE": "none.json", "EXPERT_BUDGET": "8"}, [*HOOKED, ROUTER]),
        ({"MODE": "observe", "TRACES": "seen"}, [*HOOKED, ROUTER]),
    ],
)
def test_only_what_is_needed_is_hooked(
    sglang: Context, environment: Patch, variables: dict[str, str], hooked: list[str]
) -> None:
    """Whether the table can be used is found out later, in the worker."""
    for name, value in variables.items():
        environment.setenv(f"EVICT_PROFILE_{name}", value)
    register()
    assert sorted(HookRegistry.registered) == sorted(hooked)
    if "EXPERT_BUDGET" in variables:
        assert HookRegistry.registered[ROUTER].__self__.budget == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [("MODE", "sometimes"), ("MODE", "on"), ("LADDER", "2,x"), ("EXPERT_BUDGET", "0")],
)
def test_a_bad_environment_registers_nothing(
    sglang: Context,
    environment: Patch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
) -> None:
    environment.setenv(f"EVICT_PROFILE_{name}", value)
    register()
    (said,) = warnings(caplog)
    assert said.startswith(f"{OFF}EVICT_PROFILE_{name}")
    assert not HookRegistry.registered


def test_an_unknown_version_registers_nothing(
    sglang: Context, environment: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setenv("EVICT_PROFILE_TABLE", "table.json")
    environment.setattr(metadata, "version", lambda name: "0.6.0")
    register()
    (said,) = warnings(caplog)
    assert "SGLang 0.6.0 is not supported; install one of 0.5.16" in said
    assert not HookRegistry.registered


def algorithm(eagle3: bool) -> Any:
    """One of SGLang's algorithms."""
    return SimpleNamespace(name="NAME", is_eagle3=lambda: eagle3)


def test_eagle3_gets_a_truncating_worker(sglang: Context) -> None:
    own = Plugin(Settings("on"))
    found = own.create_worker(lambda *args: EAGLEWorkerV2, algorithm(True), "args")
    assert issubclass(found, EAGLEWorkerV2) and found is not EAGLEWorkerV2
    made = found()
    assert made.evict_profile is own.serving
    assert made.evict_profile.worker is made


@pytest.mark.parametrize(("base", "eagle3"), [(Worker, True), (EAGLEWorkerV2, False)])
def test_other_workers_are_left_alone(
    sglang: Context, caplog: pytest.LogCaptureFixture, base: type, eagle3: bool
) -> None:
    own = Plugin(Settings("on"))
    assert own.create_worker(lambda *args: base, algorithm(eagle3), "args") is base
    runs = f"NAME runs {base.__name__}, and only EAGLE3 is cut"
    assert warnings(caplog) == [OFF + runs]


def test_trees_are_cut_where_there_is_a_worker(
    sglang: Context, monkeypatch: Patch
) -> None:
    own = Plugin(Settings("on"))
    found = own.build_verify_input(lambda *args, **kw: (args, kw), 1, 2, topk=3)
    assert found == ((1, 2), {"topk": 3})
    own.begin(Worker())
    called = []
    monkeypatch.setattr(worker, "build_verify_input", lambda *args: called.append(args))
    own.build_verify_input("original", "batch")
    assert called == [("original", own.serving, "batch")]


@pytest.mark.parametrize(
    ("mode", "hooked"), [("on", HOOKED), ("observe", [*HOOKED, ROUTER])]
)
def test_every_hook_is_required_at_the_start(
    sglang: Context, mode: str, hooked: list[str]
) -> None:
    needed = Plugin(Settings(mode)).begin(Worker())._needed
    for target in sorted(hooked):
        with pytest.raises(ConfigError, match=target):
            check_hooks(needed)
        HookRegistry._patched = HookRegistry._patched | {target}
    check_hooks(needed)


def test_the_entry_point_is_declared() -> None:
    found = metadata.entry_points(group="sglang.srt.plugins")
    if not found:
        pytest.skip("evict-profile is installed from before it had the plug-in")
    (entry,) = [each for each in found if each.name == "evict_profile"]
    assert entry.load() is plugin.register

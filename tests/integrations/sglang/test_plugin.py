"""The entry point registers its hooks alone, and only where it is asked to."""

import logging
import subprocess
import sys
from importlib import metadata

import pytest

from evict_profile.integrations.environment import VARIABLES, Settings
from evict_profile.integrations.sglang import plugin, worker
from evict_profile.integrations.sglang.plugin import create_worker, hooks, register
from evict_profile.integrations.sglang.serving import Serving
from tests.integrations.sglang.server import (
    Batch,
    EagleDraftWorker,
    EAGLEWorkerV2,
    HookRegistry,
    Worker,
    algorithm,
)

HOOKED = [
    "sglang.srt.managers.scheduler.Scheduler.set_internal_state",
    "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker._draft_extend_for_decode",
    "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft_forward",
    "sglang.srt.speculative.eagle_worker_v2.build_eagle_verify_input",
    "sglang.srt.speculative.eagle_worker_v2.organize_draft_results",
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
]
ROUTER = "sglang.srt.layers.moe.topk.select_experts"
OFF = "evict-profile: off, nothing was changed: "
LOADED = """
import sys
import torch, numpy.random
before = set(sys.modules)
from evict_profile.integrations.sglang.plugin import register
register()
print(*(set(sys.modules) - before))
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(f"EVICT_PROFILE_{name}", raising=False)
    return monkeypatch


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_it_is_light():
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
def test_only_what_is_needed_is_hooked(sglang, environment, variables, hooked):
    for name, value in variables.items():
        environment.setenv(f"EVICT_PROFILE_{name}", value)
    register()
    assert sorted(HookRegistry.registered) == sorted(hooked)
    if "EXPERT_BUDGET" in variables:
        assert HookRegistry.registered[ROUTER].__self__.budget == 8


@pytest.mark.parametrize(
    ("name", "value", "version", "says"),
    [
        ("MODE", "sometimes", "0.5.20", "EVICT_PROFILE_MODE"),
        # Trees were never cut on 0.5.16, which is there for the sweep.
        *(
            (
                *("TABLE", "table.json", version),
                f"SGLang {version} is not supported; install one of 0.5.20, 0.5",
            )
            for version in ("0.6.0", "0.5.16")
        ),
    ],
)
def test_what_cannot_be_registers_nothing(
    sglang, environment, caplog, name, value, version, says
):
    environment.setenv(f"EVICT_PROFILE_{name}", value)
    environment.setattr(metadata, "version", lambda name: version)
    register()
    (said,) = warnings(caplog)
    assert said.startswith(OFF + says)
    assert not HookRegistry.registered


def test_a_drafter_of_the_eagle_worker_is_cut(sglang):
    serving = Serving(Settings("on"))
    around = hooks(serving)
    HookRegistry._patched = set(around)
    build = around[worker.BUILD]
    asked = Batch(1), 2, 3, 4, 5, 6
    assert build(lambda *args, **kw: (args, kw), *asked, topk=3) == (asked, {"topk": 3})
    found = around[worker.CREATE](lambda *args: EAGLEWorkerV2, algorithm(), "args")
    assert issubclass(found, EAGLEWorkerV2) and found is not EAGLEWorkerV2
    made = found()
    assert made.evict_profile is serving
    assert serving.worker is made and serving.active


@pytest.mark.parametrize(
    ("base", "unhooked", "why"),
    [
        (Worker, "", "NAME runs Worker, and drafts are cut in EAGLEWorkerV2 alone"),
        # SGLang only logs hooks that it could not apply.
        *(
            (EAGLEWorkerV2, target, f"did not apply the hook on {target}")
            for target in (*HOOKED, ROUTER)
        ),
    ],
)
def test_other_workers_are_left_alone(sglang, caplog, base, unhooked, why):
    serving = Serving(Settings("observe"))
    HookRegistry._patched = set(hooks(serving)) - {unhooked}
    assert create_worker(serving, lambda *args: base, algorithm(), "args") is base
    (said,) = warnings(caplog)
    assert said.startswith(OFF) and why in said
    assert not serving.active


@pytest.mark.parametrize(
    ("owner", "name", "other", "why"),
    [
        (
            EagleDraftWorker,
            "draft_forward",
            lambda self, forward_batch, *, more=None: None,
            "draft_forward in a way that the plug-in does not know (got an unexpected "
            "keyword argument 'more'); install SGLang 0.5.20",
        ),
        (EagleDraftWorker, "draft_forward", lambda self: None, "missing a required"),
        (EAGLEWorkerV2, "init_cuda_graphs", lambda self, n: None, "too many position"),
    ],
)
def test_a_function_that_sglang_changed_turns_it_off(
    sglang, monkeypatch, caplog, owner, name, other, why
):
    monkeypatch.setattr(owner, name, other)
    serving = Serving(Settings("on"))
    HookRegistry._patched = set(hooks(serving))
    base = create_worker(serving, lambda *args: EAGLEWorkerV2, algorithm(), "args")
    assert base is EAGLEWorkerV2
    (said,) = warnings(caplog)
    assert said.startswith(f"{OFF}SGLang calls ") and why in said


def test_the_entry_point_is_declared():
    found = metadata.entry_points(group="sglang.srt.plugins")
    if not found:
        pytest.skip("evict-profile is installed from before it had the plug-in")
    (entry,) = [each for each in found if each.name == "evict_profile"]
    assert entry.load() is plugin.register

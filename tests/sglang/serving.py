"""Runs the tiny engine with the project's plug-in and the tests' own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from evict_profile.config import load_model
from evict_profile.fit.export import make_table
from evict_profile.integrations.sglang.compat import device_name, installed
from evict_profile.records import replace, to_mapping
from evict_profile.table import Key
from tests.factories import ACCEPTANCE
from tests.sglang.engine import MODELS
from tests.sglang.planted import SCRIPT, Script

ROOT = Path(__file__).parents[2]
PLUGIN = "planted = tests.sglang.planted:register"
LONGEST_S = 400.0


@dataclass(frozen=True)
class Request:
    """A prompt, and when its reply ends."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[int, ...] = ()


def replies(folder, tree, batches, environment):
    """What an engine says to each batch; its log is shown if it fails."""
    _install_planted(folder)
    job, log = folder / "job.json", folder / "engine.log"
    asked = [[to_mapping(request) for request in batch] for batch in batches]
    job.write_text(json.dumps({"tree": tree and to_mapping(tree), "batches": asked}))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "TRITON_INTERPRET" and not name.startswith("EVICT_PROFILE_")
    }
    found = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    with log.open("w") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.sglang.engine", str(job)],
            env={**inherited, **found, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_S,
        )
    said = folder / "said.json"
    if ended.returncode or not said.exists():
        pytest.fail(f"the engine ended with {ended.returncode}:\n{_end(log)}")
    answers: list[list[list[int]]] = json.loads(said.read_text())
    return answers


@dataclass(frozen=True)
class CutRun:
    """A run of the engine with the plug-in.

    Attributes:
        said: replies to each batch.
        steps: width of each step, tokens that it committed, whether it drafted nothing.
        routed: of each layer of a verification within a budget: experts that may run,
            experts that ran, what each token counts.
    """

    said: list[list[list[int]]]
    steps: list[tuple[int, list[int], bool]]
    routed: list[tuple[int, int, list[float]]]


def cut_replies(folder, fitted, tree, batches, sequences, decided=(), **variables):
    """What an engine that cuts says to each batch, with a table that fits it.

    Args:
        sequences: each prompt with its plain continuation behind it.
        decided: prompts whose widths are not forced, by their first token.
        variables: of the plug-in, beside the table and a ladder of all widths.
    """
    steps, routed, script = (folder / name for name in ("steps", "routed", "script"))
    steps.touch()
    routed.touch()
    known = [list(each) for each in sequences]
    told = Script(known, str(steps), list(decided), str(routed))
    script.write_text(json.dumps(vars(told)))
    table = folder / "table.json"
    _table(fitted).save(table)
    ladder = ",".join(map(str, range(1, tree.num_draft_tokens + 1)))
    asked = {"TABLE": str(table), "LADDER": ladder, **variables}
    environment = {f"EVICT_PROFILE_{name}": value for name, value in asked.items()}
    said = replies(folder, tree, batches, {SCRIPT: str(script), **environment})
    lines = [
        list(map(json.loads, log.read_text().splitlines())) for log in (steps, routed)
    ]
    return CutRun(said, *lines)


def _install_planted(folder):
    """Let SGLang find the tests' plug-in as it finds installed ones."""
    found = folder / "planted-0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: planted\nVersion: 0\n"
    )
    (found / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{PLUGIN}\n")


def _end(log):
    known = ("Ignore import error", "server_args=", "UserWarning", "warnings.warn")
    lines = log.read_text().splitlines()
    return "\n".join([x for x in lines if not any(k in x for k in known)][-60:])


def _table(fitted):
    key = Key(
        gpu=device_name(SimpleNamespace(device="cpu")),
        model="tiny-served",
        dtype="float32",
        tp=1,
        ep=1,
        engine="sglang",
        engine_version=installed(),
        attention_backend="IntelAMXAttnBackend",
        moe_backend="UnquantizedFusedMoEMethod-native",
        graph_mode="eager",
    )
    model = replace(load_model(str(MODELS / "target/config.json")), name=key.model)
    table = replace(make_table(fitted, samples_sha256=""), key=key, model=model)
    # The known run has more experts than the served model: price it anew.
    return replace(table.within_budget(model.moe.num_experts), acceptance=ACCEPTANCE)

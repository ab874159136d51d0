"""Runs the tiny engine with the project's plug-in and the tests' own."""

import json
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from benchmarks.sglang_planted.process import environment_with, run_apart
from evict_profile.config import load_model
from evict_profile.fit.export import make_table
from evict_profile.integrations.sglang.compat import device_name, installed
from evict_profile.records import replace, to_mapping
from evict_profile.table import Key
from runners.sglang_verify.models import FP8_BLOCK, write_config
from tests.factories import ACCEPTANCE
from tests.sglang.engine import MODELS
from tests.sglang.planted import SCRIPT, Script

PLUGINS = {"planted": "tests.sglang.planted:register"}
FP8_PLUGIN = {"fp8": "tests.sglang.fp8_on_cpu:register"}
LONGEST_S = 1200.0
"""How long an engine may take, which on a busy machine is many minutes."""

DUMPS = ("SGLANG_CUDA_COREDUMP_BEFORE_CRASH", "SGLANG_PYSPY_DUMP_BEFORE_CRASH")
"""What a server that ends would wait 65 s for."""


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[int, ...] = ()


def replies(folder, tree, batches, environment, target="target", tp=1):
    """What an engine says to each batch; its log is shown if it fails."""
    job, log, said = (folder / name for name in ("job.json", "engine.log", "said.json"))
    asked = [[to_mapping(request) for request in batch] for batch in batches]
    shape = tree and to_mapping(tree)
    told = {"target": target, "tree": shape, "batches": asked, "tp": tp}
    job.write_text(json.dumps(told))
    quantised = is_fp8(model_of(target))
    inherited = environment_with(folder, PLUGINS | (FP8_PLUGIN if quantised else {}))
    inherited |= dict.fromkeys(DUMPS, "0")
    if tp > 1:
        inherited["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(tp)))
    inherited.pop("TRITON_INTERPRET", None)
    words = [sys.executable, "-m", "tests.sglang.engine", str(job)]
    run_apart(words, inherited | environment, log, LONGEST_S)
    if not said.exists():
        pytest.fail(f"the engine did not answer:\n{_end(log)}")
    return json.loads(said.read_text())


@dataclass(frozen=True)
class Step:
    """Its width, tokens committed, whether it drafted nothing, the table decided, or
    it drafted fewer levels."""

    width: int
    tokens: list[int]
    paused: bool
    decided: bool
    fewer: bool


@dataclass(frozen=True)
class CutRun:
    """A run of the engine with the plug-in.

    Attributes:
        said: replies to each batch.
        chains: path probabilities of each chain, as kept and as its logits say.
        routed: of each layer of a verification within a budget: experts that may run,
            experts that ran, what each token counts.
    """

    said: list[list[list[int]]]
    steps: list[Step]
    chains: list[tuple[list[float], list[float]]]
    routed: list[tuple[int, int, list[float]]]


def cut_replies(
    folder,
    fitted,
    tree,
    batches,
    sequences,
    decided=(),
    target="target",
    ranks=(),
    known_to=None,
    texts=None,
    **variables,
):
    """What an engine that cuts says to each batch, with a table that fits it.

    Args:
        sequences: each prompt with its plain continuation behind it.
        decided: prompts whose widths are not forced, by their first token.
        target: the model's folder, in `MODELS` or anywhere.
        ranks: what goes wrong on each rank of tensor parallelism; none is one rank.
        known_to: what makes another table of it.
        texts: the script's `hard` and `easy` prompts.
        variables: of the plug-in, beside the table and capture sizes of all widths.
    """
    names = ("steps", "chains", "routed", "script")
    *logs, script = (folder / name for name in names)
    for log in logs:
        log.touch()
    known = [list(each) for each in sequences]
    told = Script(
        known, list(decided), *map(str, logs), ranks=list(ranks), **(texts or {})
    )
    script.write_text(json.dumps(vars(told)))
    table = folder / "table.json"
    tp = len(ranks) or 1
    made = table_of(fitted, model_of(target), tp)
    (known_to(made) if known_to else made).save(table)
    capture_sizes = ",".join(map(str, range(1, tree.num_draft_tokens + 1)))
    asked = {"TABLE": str(table), "CAPTURE_SIZES": capture_sizes, **variables}
    environment = {f"EVICT_PROFILE_{name}": value for name, value in asked.items()}
    environment[SCRIPT] = str(script)
    said = replies(folder, tree, batches, environment, target, tp)
    steps, *rest = (list(map(json.loads, log.read_text().splitlines())) for log in logs)
    return CutRun(said, [Step(*step) for step in steps], *rest)


def _end(log):
    known = ("Ignore import error", "server_args=", "UserWarning", "warnings.warn")
    lines = log.read_text().splitlines()
    return "\n".join([x for x in lines if not any(k in x for k in known)][-60:])


def fp8_target(folder):
    """The folder of the target with weights of FP8 in blocks."""
    shape = json.loads((MODELS / "target/config.json").read_text())
    fp8 = {**FP8_BLOCK, "weight_block_size": [16, 16]}
    given = {**shape, "torch_dtype": "bfloat16", "quantization_config": fp8}
    return write_config(folder, given)


def model_of(target):
    return load_model(str(MODELS / target / "config.json"))


def is_fp8(model):
    return model.checkpoint_dtype == "fp8_block"


def table_of(fitted, model, tp=1):
    """The known run as if SGLang had measured this model here."""
    method = "Fp8MoEMethod" if is_fp8(model) else "UnquantizedFusedMoEMethod"
    key = Key(
        gpu=device_name(SimpleNamespace(device="cpu")),
        model="tiny-served",
        dtype="fp8_block" if is_fp8(model) else "float32",
        tp=tp,
        ep=1,
        engine="sglang",
        engine_version=installed(),
        attention_backend="IntelAMXAttnBackend",
        moe_backend=f"{method}-native",
        graph_mode="eager",
    )
    model = replace(model, name=key.model)
    table = replace(make_table(fitted, samples_sha256=""), key=key, model=model)
    # The known run has more experts than the served model.
    return replace(table.within_budget(model.moe.num_experts), acceptance=ACCEPTANCE)

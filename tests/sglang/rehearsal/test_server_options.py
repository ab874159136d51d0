"""What SGLang makes of the session's options and of the documented server's, on GPUs of
80 and of 141 GB.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.sglang.rehearsal.pretended_gpu import MEMORY_MIB, ROOT

PROGRAM = "tests.sglang.rehearsal.pretended_gpu"

KV_BYTES_PER_TOKEN = (48 + 1) * 2 * 4 * 128 * 2
"""Of 48 layers and the one of the head: keys and values, 4 heads of 128 in bf16."""

WEIGHTS_MIB = 58_233 + 900
"""Of the target in bf16, and about those of the head and of a CUDA context."""

gpus = pytest.mark.parametrize("gpu", MEMORY_MIB)
sessions = pytest.mark.parametrize("session", ["trees", "chains"])


@pytest.fixture(scope="module")
def resolved(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, str(tmp_path_factory.mktemp("models"))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@gpus
@sessions
def test_the_session_runs_the_attention_of_the_documented_server(
    resolved, gpu, session
):
    """Else a server would refuse the table: its key names the backend."""
    server = resolved[gpu]["server"]["attention_backend"]
    assert resolved[gpu][session]["attention_backend"] == server


@gpus
@sessions
def test_the_session_captures_the_batches_of_the_plan(resolved, gpu, session):
    assert resolved[gpu][session]["decode_batches"] == [1, 4, 16]


@pytest.mark.parametrize(("gpu", "share"), [("H100", 0.841), ("H200", 0.91)])
@sessions
def test_sglang_keeps_the_share_that_the_room_is_reckoned_by(
    resolved, gpu, share, session
):
    """Of the memory, for weights and KV cache; the captured batches are in the rest."""
    assert resolved[gpu][session]["mem_fraction_static"] == share


@gpus
def test_the_shipped_plan_fits(resolved, gpu):
    """Its KV cache beside the weights, before anything is captured."""
    session = resolved[gpu]["trees"]
    static_mib = session["mem_fraction_static"] * MEMORY_MIB[gpu]
    room = (static_mib - WEIGHTS_MIB) * 2**20 / KV_BYTES_PER_TOKEN
    assert session["max_total_tokens"] < room


@gpus
@sessions
def test_pages_of_the_cache_hold_one_token(resolved, gpu, session):
    """The plug-in refuses others."""
    assert resolved[gpu][session]["page_size"] == 1
    assert resolved[gpu]["server"]["page_size"] == 1

"""The dtype that a device is measured in, and what its errors mean."""

import pytest
import torch

from runners import device as module
from runners.device import device_lost, first_line, out_of_memory, pick_dtype
from runners.protocol import Refusal

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("flags", "own", "asked", "device", "dtype"),
    [
        ("flags\t\t: fpu sse2 avx2", "bfloat16", "auto", CPU, "float32"),
        ("flags\t\t: avx2 avx512f avx512_vnni", "bfloat16", "auto", CPU, "float32"),
        ("flags\t\t: avx512f avx512_bf16", "bfloat16", "auto", CPU, "bfloat16"),
        ("flags\t\t: avx512f amx_bf16 amx_tile", "bfloat16", "auto", CPU, "bfloat16"),
        ("Features\t: fp asimd bf16", "bfloat16", "auto", CPU, "bfloat16"),
        ("Features\t: fp asimd", "bfloat16", "auto", CPU, "float32"),
        ("", "bfloat16", "auto", CPU, "float32"),
        ("flags\t: avx2", "bfloat16", "bfloat16", CPU, "bfloat16"),
        ("flags\t: avx2", "bfloat16", "auto", GPU, "bfloat16"),
        ("flags\t: avx2", "float32", "auto", CPU, "float32"),
    ],
)
def test_auto_takes_bfloat16_where_the_cpu_multiplies_it(
    flags, own, asked, device, dtype, tmp_path, monkeypatch
):
    """By the flags of AMX, AVX-512 and Arm; it says why it left the model's own."""
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: a CPU of paper\n{flags}\n")
    monkeypatch.setattr(module, "CPUINFO", path)
    picked, reason = pick_dtype({"dtype": own}, asked, device)
    assert picked == dtype
    assert ("emulates" in reason) == (dtype != own)


@pytest.mark.parametrize(
    ("own", "asked"), [("q4_k", "auto"), ("bfloat16", "fp8_block")]
)
def test_types_of_an_engine_s_weights_are_refused(own, asked):
    with pytest.raises(Refusal, match="with --plan sglang or examples/llama_cpp"):
        pick_dtype({"dtype": own}, asked, GPU)


OOM = "CUDA out of memory. Tried to allocate 2 GiB"


def chained():
    """As when a capture that ran out of memory is ended."""
    try:
        try:
            raise torch.OutOfMemoryError(OOM)
        finally:
            raise RuntimeError("CUDA error: capture failed due to a previous error")
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(OOM), chained()])
def test_memory_is_found_wherever_it_ran_out(error):
    assert out_of_memory(error) == OOM
    assert out_of_memory(RuntimeError("an illegal memory access")) == ""


def test_the_first_line_is_what_it_says():
    assert first_line(RuntimeError("no plans\nset this variable")) == "no plans"
    assert first_line(RuntimeError()) == "RuntimeError"


def test_a_gpu_that_answers_nothing_is_lost(monkeypatch):

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not device_lost(GPU) and not device_lost(CPU)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert device_lost(GPU)

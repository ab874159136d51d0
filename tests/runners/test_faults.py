"""What went wrong is told apart: memory, the device, or one cell."""

import pytest
import torch

from runners.torch_moe.faults import device_lost, first_line, out_of_memory

OOM = "CUDA out of memory. Tried to allocate 2 GiB"
CUDA = torch.device("cuda")


def chained() -> RuntimeError:
    """As when a capture that ran out of memory is ended."""
    try:
        try:
            raise torch.OutOfMemoryError(OOM)
        finally:
            raise RuntimeError("CUDA error: capture failed due to a previous error")
    except RuntimeError as error:
        return error


def test_the_first_line_is_what_it_says() -> None:
    """Without advice and stack; an error without words has its name."""
    assert first_line(RuntimeError("no plans\nset this variable")) == "no plans"
    assert first_line(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(OOM), chained()])
def test_memory_is_found_wherever_it_ran_out(error: RuntimeError) -> None:
    """In the error, or in the one that it came from."""
    assert out_of_memory(error) == OOM


def test_other_words_are_not_of_memory() -> None:
    """Nor is an illegal access to it."""
    assert out_of_memory(RuntimeError("an illegal memory access")) == ""


def test_a_cpu_is_never_lost() -> None:
    """Its errors leave nothing behind."""
    assert not device_lost(torch.device("cpu"))


def test_a_gpu_that_answers_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for it raises what broke it; else it goes on."""

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not device_lost(CUDA)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert device_lost(CUDA)

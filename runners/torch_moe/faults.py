"""What an error of torch means: no memory, a lost device, or one cell that failed."""

import torch

OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
"""What torch says when an allocation fails, on a GPU and on a CPU."""


def first_line(error: BaseException) -> str:
    """What it says, without the advice and the stack that torch adds."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def out_of_memory(error: BaseException | None) -> str:
    """What was said of memory, by this error or by one that it came from; "" if none.

    Ending a capture that a failed allocation broke off is an error of its own.
    """
    while error is not None:
        says = first_line(error)
        if any(sign in says for sign in OUT_OF_MEMORY):
            return says
        error = error.__context__
    return ""


def device_lost(device: torch.device) -> bool:
    """Whether nothing runs on the device any more, as after an illegal access.

    CUDA then answers every later call in this process with the same error.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False

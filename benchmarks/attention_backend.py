"""What each kernel of attention takes at the places of a sweep, first call and later.

    python benchmarks/attention_backend.py --sweep full --out kernels.json

`scaled_dot_product_attention` picks a kernel by device, sizes and version. One that
plans for each new size can take long at its first call, or find no plan at all; and
what is picked need not be the fastest. Here every kernel is forced in turn, on one
layer's cache (of a model with windows, on both kinds of layers): `first_s` is wall time
of its first call at that place, loading included; `us` the median of later ones. What a
kernel cannot do is told in torch's words.

TORCH_CUDNN_SDPA_DEPRIORITIZED=1 makes torch pick another than cuDNN's, in a runner too.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.command import Answer, command, count
from evict_profile.config import load_model, load_sweep
from evict_profile.sweep.grid import make_grid
from runners.torch_moe.attention import (
    KERNELS,
    Attention,
    Seat,
    attend,
    kernel_of,
    make_attention,
    make_seat,
)
from runners.torch_moe.clocks import CpuClock, CudaClock, Run
from runners.torch_moe.device import pick_device
from runners.torch_moe.faults import device_lost, first_line
from runners.torch_moe.noise import Noise
from runners.torch_moe.routing import random_tree_mask
from runners.torch_moe.shape import read_shape

FORCED = {name: SDPBackend(n) for n, name in KERNELS.items() if name != "overrideable"}


@dataclass(frozen=True)
class Kernel:
    """What one kernel took, or `says` why it did not run."""

    name: str
    first_s: float | None = None
    us: float | None = None
    says: str = ""


@dataclass(frozen=True)
class Place:
    """A place of the sweep in a layer of one window; `picked` is torch's choice."""

    width: int
    context: int
    batch: int
    window: int
    picked: str
    kernels: tuple[Kernel, ...]


@command
def main(words: Sequence[str]) -> None:
    """Measure, print and write every place."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--sweep", default="repeat", help="whose places are taken")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--rounds", type=count, default=10)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(words)
    answer = Answer(asked.out, [Path(asked.model), Path(asked.sweep)])
    places = []
    for place in measure(asked):
        places.append(asdict(place))
        answer.keep(places)
        print(told(place), flush=True)
    answer.write(places)


@torch.inference_mode()
def measure(asked: argparse.Namespace) -> Iterator[Place]:
    """Every place of the sweep, in every kind of layer."""
    model, device = load_model(asked.model), pick_device(asked.device)
    cells = make_grid(load_sweep(asked.sweep), model).cells
    places = sorted({(c.batch, c.width, c.context) for c in cells})
    seats = (max(b for b, _, _ in places), max(n + c for _, n, c in places))
    shape = read_shape(asdict(model), 1)
    noise = Noise(device, shape.dtype, 0)
    kinds = range(
        model.attention.sliding_every if model.attention.sliding_window else 1
    )
    attentions = [make_attention(shape, index, seats, noise) for index in kinds]
    clock = CpuClock(noise) if device.type == "cpu" else CudaClock(device)
    for sizes in places:
        seat = make_seat(shape, *sizes, device)
        seat.place(random_tree_mask(seat.width, seed=0))
        for attention in attentions:
            yield measure_place(attention, seat, clock, asked.rounds)


def measure_place(
    attention: Attention, seat: Seat, clock: CpuClock | CudaClock, rounds: int
) -> Place:
    """Each kernel's first call, then later ones in turns."""
    inputs = attention.inputs(seat)

    def call() -> object:
        return attend(*inputs, seat)

    first = {name: first_call(name, call, inputs[0].device) for name in FORCED}
    ran = [name for name, kernel in first.items() if not kernel.says]
    times_us: dict[str, list[float]] = {name: [] for name in ran}
    for number in range(rounds):
        for name in random.Random(number).sample(ran, len(ran)):
            with sdpa_kernel(FORCED[name]):
                times_us[name].append(clock.time(call).clock_us)
    later = (
        Kernel(name, first[name].first_s, round(statistics.median(times), 2))
        for name, times in times_us.items()
    )
    refused = (kernel for kernel in first.values() if kernel.says)
    return Place(
        seat.width,
        seat.context,
        seat.batch,
        attention.window,
        kernel_of(attention, seat),
        (*later, *refused),
    )


def first_call(name: str, call: Run, device: torch.device) -> Kernel:
    """One kernel, waited for.

    Raises:
        RuntimeError: it took the device with it.
    """
    began = time.perf_counter()
    try:
        with sdpa_kernel(FORCED[name]):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
    except RuntimeError as error:
        if device_lost(device):
            raise
        return Kernel(name, says=first_line(error))
    return Kernel(name, round(time.perf_counter() - began, 4))


def told(place: Place) -> str:
    """A place in one line."""
    window = f" window={place.window}" if place.window else ""
    kernels = (
        f"{k.name} {k.us} us (first {k.first_s} s)" for k in place.kernels if not k.says
    )
    return (
        f"n={place.width} context={place.context} batch={place.batch}{window}: torch "
        f"picks {place.picked}; {', '.join(kernels)}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

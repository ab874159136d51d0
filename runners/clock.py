"""Clocks: what a forward cost, apart from what else the machine was doing.

CPU: the process's own CPU time, one thread. A neighbour still slows it, through shared
memory bandwidth and clock frequency; so each sample stands between two runs of a fixed
reference work. GPU: events around one replay, behind writes that clear the L2 cache.
"""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812

from runners.session import Clock, Run, Timing

if TYPE_CHECKING:
    from runners.torch_moe.shape import RandomWeights

COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
COPIES = 9
REFERENCE_ROWS, REFERENCE_COLUMNS = 4, 2048
MIN_REFERENCE_BYTES, MAX_REFERENCE_BYTES = 48 << 20, 512 << 20
REFERENCE_RUNS = 15
"""Whose median stands for the machine's speed now, where single ones are too noisy."""
L2_FLUSHES = 20
"""Writes before a GPU sample: one clears the cache; the others keep the device busy
for about a millisecond, so that the launch of a large graph is not timed as well."""


@dataclass(frozen=True)
class Timestamp:
    """A moment, or the time between two, in microseconds: the primary clock and the
    wall's."""

    us: float
    wall_us: float

    def __sub__(self, earlier: "Timestamp") -> "Timestamp":
        return Timestamp(self.us - earlier.us, self.wall_us - earlier.wall_us)


def process_us() -> float:
    return time.process_time_ns() / 1e3


def wall_us() -> float:
    return time.perf_counter_ns() / 1e3


def cpu_now() -> Timestamp:
    """CPU time of the process; a neighbour adds much less to it than to wall time."""
    return Timestamp(process_us(), wall_us())


def wall_now() -> Timestamp:
    """Wall time, for work that this process's CPU time does not follow."""
    us = wall_us()
    return Timestamp(us, us)


def now(device: torch.device) -> Timestamp:
    """CPU time on a CPU; wall time on a GPU, once its work is done."""
    if device.type == "cpu":
        return cpu_now()
    torch.cuda.synchronize(device)
    return wall_now()


def in_a_row_us(device: torch.device, runs: Sequence[Run], lead_in: Run) -> float:
    """Mean time of runs in a row: CPU time on a CPU, between events on a GPU.

    A GPU is busy with the untimed lead-in while the host prepares the first run, so
    host time counts only where the device waits for it, as in a server.
    """
    if device.type == "cpu":
        begun = cpu_now()
        for run in runs:
            run()
        return (cpu_now() - begun).us / len(runs)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    lead_in()
    start.record()
    for run in runs:
        run()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) * 1e3 / len(runs)


class ReferenceClock:
    """Times each sample between two runs of a reference work."""

    def __init__(self, name: str, now: Callable[[], Timestamp], reference: Run) -> None:
        self.name, self.now, self.reference = name, now, reference
        self.time_reference()

    def us(self, run: Run) -> float:
        """The time of one run, with no reference beside it."""
        start = self.now()
        run()
        return (self.now() - start).us

    def time_reference(self) -> float:
        return self.us(self.reference)

    def median_reference_us(self) -> float:
        return median(self.time_reference() for _ in range(REFERENCE_RUNS))

    def time(self, run: Run) -> Timing:
        first_us, took_us = self.time_reference(), self.us(run)
        return Timing(took_us, (first_us + self.time_reference()) / 2.0)


class CudaClock:
    """Device events around a run that finds a cold L2."""

    name = "device events"

    def __init__(self, device: torch.device) -> None:
        cache = cache_bytes(device)
        self.sweep = torch.empty(5 * cache, dtype=torch.uint8, device=device)

    def time(self, run: Run) -> Timing:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for _ in range(L2_FLUSHES):
            self.sweep.zero_()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return Timing(start.elapsed_time(end) * 1e3, math.nan)


def pick_clock(device: torch.device, noise: "RandomWeights") -> Clock:
    """The clock of weights that are streamed from memory."""
    if device.type == "cuda":
        return CudaClock(device)
    name = "process CPU time over reference"
    return ReferenceClock(name, cpu_now, weight_stream(noise))


def weight_stream(noise: "RandomWeights") -> Run:
    """A reference that reads twice the last-level cache of weights through a product.

    So it leaves every sample a cold cache as well.
    """
    wanted = min(2 * cache_bytes(torch.device("cpu")), MAX_REFERENCE_BYTES)
    values = max(wanted, MIN_REFERENCE_BYTES) // noise.block.itemsize
    weights = noise.weight(values // REFERENCE_COLUMNS, REFERENCE_COLUMNS)
    rows = noise.weight(REFERENCE_ROWS, REFERENCE_COLUMNS)

    def run() -> None:
        for block in weights.split(1536):
            F.linear(rows, block)

    return run


def cache_bytes(device: torch.device) -> int:
    """Size of the last cache before the device's memory, 32 MiB where it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [p.read_text().strip() for p in sorted(folder.glob("index*/size"))]
    unit = {"K": 1 << 10, "M": 1 << 20}
    parsed = [re.fullmatch(r"(\d+)([KM])", size) for size in sizes]
    return max((int(m[1]) * unit[m[2]] for m in parsed if m), default=32 << 20)


def copy_bandwidth_gbps(device: torch.device) -> float:
    """Bytes read plus written a second by a large copy, median of several."""
    source = torch.ones(COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times_us = sorted(_copy_us(source, target) for _ in range(COPIES))
    return 2 * source.nbytes / times_us[COPIES // 2] / 1e3


def _copy_us(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.device.type == "cpu":
        start = process_us()
        target.copy_(source)
        return process_us() - start
    start_event, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()
    target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return start_event.elapsed_time(end) * 1e3

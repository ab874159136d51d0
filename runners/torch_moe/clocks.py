"""Clocks: what a forward cost, apart from what else the machine was doing.

CPU: the process's own CPU time, one thread. A neighbour still slows it, through
shared memory bandwidth and clock frequency; so each sample is paired with a fixed
reference work timed right before and right after it. The reference streams weights
through the same matrix product, twice the last-level cache of them, and so leaves
every sample a cold cache as well.

GPU: events around one replay, behind writes that sweep the L2 cache.

Either clock can be given what runs untimed between that and the sample, which then
finds the cache as that left it: `read` leaves weights of no layer, and a forward its
own (benchmarks/l2_residency.py).
"""

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

from runners.measuring import Reading
from runners.torch_moe.shape import Noise

COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
COPIES = 9
REFERENCE_ROWS, REFERENCE_COLUMNS = 4, 2048
MIN_REFERENCE_BYTES, MAX_REFERENCE_BYTES = 48 << 20, 512 << 20
SWEEPS = 20
"""Writes before a GPU sample: one clears the cache; the others keep the device busy
for about a millisecond, so that the launch of a large graph is not timed as well."""

Run = Callable[[], object]


def last_level_cache_bytes() -> int:
    """Size of the CPU's last-level cache, 32 MiB where the system does not say."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [p.read_text().strip() for p in sorted(folder.glob("index*/size"))]
    unit = {"K": 1 << 10, "M": 1 << 20}
    parsed = [re.fullmatch(r"(\d+)([KM])", size) for size in sizes]
    return max((int(m[1]) * unit[m[2]] for m in parsed if m), default=32 << 20)


def cache_bytes(device: torch.device) -> int:
    """Size of the cache before the device's memory."""
    if device.type == "cpu":
        return last_level_cache_bytes()
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def process_us() -> float:
    return time.process_time_ns() / 1e3


def wall_us() -> float:
    return time.perf_counter_ns() / 1e3


class CpuClock:
    """Process CPU time, each sample between two references."""

    name = "process CPU time over reference"

    def __init__(self, noise: Noise) -> None:
        wanted = min(2 * last_level_cache_bytes(), MAX_REFERENCE_BYTES)
        values = max(wanted, MIN_REFERENCE_BYTES) // noise.block.itemsize
        rows = values // REFERENCE_COLUMNS
        self.weights = noise.weight(rows, REFERENCE_COLUMNS)
        self.rows = noise.weight(REFERENCE_ROWS, REFERENCE_COLUMNS)
        self.time_reference()

    def time_reference(self) -> float:
        """CPU time of the reference work now, in microseconds."""
        start = process_us()
        for block in self.weights.split(1536):
            F.linear(self.rows, block)
        return process_us() - start

    def read(self) -> None:
        """Read through the cache what is none of the model's."""
        self.time_reference()

    def time(self, run: Run, first: Run | None = None) -> Reading:
        """Time one run; `first` runs right before it, untimed."""
        before = self.time_reference()
        if first:
            first()
        wall, start = wall_us(), process_us()
        run()
        clock, wall = process_us() - start, wall_us() - wall
        return Reading(clock, wall, (before + self.time_reference()) / 2.0)


class CudaClock:
    """Device events around a run that finds a cold L2."""

    name = "device events"

    def __init__(self, device: torch.device) -> None:
        cache = cache_bytes(device)
        self.sweep = torch.empty(5 * cache, dtype=torch.uint8, device=device)

    def read(self) -> None:
        """Read through the cache what is none of the model's.

        The sweep writes, and a sample behind it pays for writing its lines back.
        """
        self.sweep.any()

    def time(self, run: Run, first: Run | None = None) -> Reading:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        wall = wall_us()
        for _ in range(SWEEPS):
            self.sweep.zero_()
        if first:
            first()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return Reading(start.elapsed_time(end) * 1e3, wall_us() - wall, math.nan)


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

"""A runner that measures nothing: it answers with the roofline of a datasheet.

Bytes over bandwidth and operations over rate bound any latency from below, so this is
what verification would cost on hardware one does not have, at the very best. Its
engine is `evict_profile.physics`; its tables are keyed "roofline", and load nowhere
else. Run as `python -m runners.roofline`.
"""

import math

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.config.gpu import GpuSpec, load_gpu
from evict_profile.physics import layer_work, non_moe_work
from evict_profile.records import parse, replace
from runners.protocol import Message, Refusal, serve_session
from runners.session import Forward, MeasureSession, Run, Timing


class Datasheet:
    """A clock of runs that return their latency in microseconds."""

    name = "datasheet"

    def time(self, run: Run) -> Timing:
        latency_us = run()
        assert isinstance(latency_us, float)
        return Timing(latency_us, math.nan)


class Session(MeasureSession):
    def __init__(self, model: Message, options: Message) -> None:
        super().__init__()
        given, asked = parse(ModelSpec, model, "the request to open"), options["dtype"]
        self.dtype = given.stored_dtype if asked == "auto" else asked
        self.model = stored = replace(given, dtype=self.dtype)
        self.gpu = load_gpu(options["engine"]["gpu"])
        check_memory(stored, self.gpu)
        if stored.bytes_per_value < 1:  # The rest and the cache have sixteen bits.
            self.model = replace(given, dtype="bfloat16")
        self.clock = Datasheet()
        self.layers = self.model.moe_layers
        self.bandwidth_gbps = self.gpu.memory_bandwidth_gbps
        self.bytes_per_expert = stored.bytes_per_expert
        self.fingerprint = {
            "engine": "roofline",
            "engine_version": "1",
            "runner_sha256": "",
            "device": self.gpu.name,
            "device_kind": "datasheet",
            "cuda": "",
            "layers": self.layers,
            "attention_backend": "roofline",
            "moe_backend": "roofline",
            "graph_mode": "none",
            "clock": self.clock.name,
            "threads": 0,
            "tp": 1,
            "ep": 1,
        }

    def answer_open(self) -> Message:
        return super().answer_open() | {"dtype": self.dtype}

    def prepare(self, cell: Message, layers: int, seed: int) -> Forward:
        """The same latency for every seed."""
        asked = parse(Cell, cell, "the request to measure")
        union = asked.union or self.model.uniform_union(asked.tokens)
        return Forward(
            lambda: self.latency_us(asked, union, layers),
            asked.width,
            lambda: [union],
        )

    def latency_us(self, cell: Cell, union: float, layers: int) -> float:
        if cell.part == "non_moe":
            work, times = non_moe_work(self.model, cell), 1
        else:
            work, times = layer_work(self.model, cell, union), layers
            less = union * (self.model.bytes_per_expert - self.bytes_per_expert)
            work = replace(work, bytes_moved=work.bytes_moved - less)
        gpu = self.gpu
        bound_us = work.roofline_us(gpu.memory_bandwidth_gbps, gpu.bf16_dense_tflops)
        return times * bound_us


def check_memory(model: ModelSpec, gpu: GpuSpec) -> None:
    """Refuse a model whose weights alone exceed the GPU's memory.

    What barely fits is not refused: a datasheet's GB are about 2**30 bytes.
    """
    held_gb = model.total_parameters * model.bytes_per_value / 2**30
    if held_gb > gpu.memory_gb:
        raise Refusal(
            "memory",
            f"the weights of {model.name} in {model.dtype} take {held_gb:,.0f} GB, "
            f"and one {gpu.name} has {gpu.memory_gb:g} GB; choose a smaller model, or "
            "a larger 'engine.gpu' in a copy of the plan; evict-profile "
            "estimate answers for several GPUs",
        )


if __name__ == "__main__":
    serve_session(Session)

"""A runner that measures nothing: it answers with the roofline of a datasheet.

Bytes over bandwidth and operations over rate bound any latency from below, so this is
what verification would cost on hardware one does not have, at the very best. Its
engine is `evict_profile.physics`; its tables are keyed "roofline", and load nowhere
else. Run as `python -m runners.roofline`.
"""

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.config.gpu import load_gpu
from evict_profile.physics import layer_work, non_moe_work
from evict_profile.records import parse
from runners.measuring import Reading, sample
from runners.protocol import PARTS, Message, serve_session


class Session:
    """A model and a datasheet."""

    def __init__(self, model: Message, options: Message) -> None:
        self.model = parse(ModelSpec, model, "the request to open")
        self.gpu = load_gpu(options["gpu"])

    def answer_open(self) -> Message:
        return {
            "fingerprint": {
                "engine": "roofline",
                "engine_version": "1",
                "runner_sha256": "",
                "device": self.gpu.name,
                "device_kind": "datasheet",
                "cuda": "",
                "layers": self.model.moe_layers,
                "attention_backend": "roofline",
                "moe_backend": "roofline",
                "graph_mode": "none",
                "clock": "datasheet",
                "threads": 0,
                "tp": 1,
                "ep": 1,
            },
            "parts": PARTS,
            "ladder": [],
            "bandwidth_gbps": self.gpu.memory_bandwidth_gbps,
            "bytes_per_expert": self.model.bytes_per_expert,
        }

    def measure(self, ask: Message) -> Message:
        """The same price for every seed."""
        cell = parse(Cell, ask["cell"], "the request to measure")
        union = cell.union or self.model.uniform_union(cell.tokens)
        latency_us = self.price_us(cell, union, ask["layers"] or self.model.moe_layers)
        reading = Reading(latency_us, latency_us, float("nan"))
        answers = (
            sample(seed, reading, cell.width, [cell.union], backend="roofline")
            for seed in ask["seeds"]
        )
        return {"samples": [{**answer, "observed_union": union} for answer in answers]}

    def price_us(self, cell: Cell, union: float, layers: int) -> float:
        """The floor under a cell's latency."""
        if cell.part == "non_moe":
            work, times = non_moe_work(self.model, cell), 1
        else:
            work, times = layer_work(self.model, cell, union), layers
        gpu = self.gpu
        bound_us = work.roofline_us(gpu.memory_bandwidth_gbps, gpu.bf16_dense_tflops)
        return times * bound_us


if __name__ == "__main__":
    serve_session(Session)

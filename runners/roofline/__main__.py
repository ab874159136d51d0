"""A runner that measures nothing: it answers with the roofline of a datasheet.

Bytes over bandwidth and operations over rate bound any latency from below, so this is
what verification would cost on hardware one does not have, at the very best. Its
engine is `evict_profile.physics`; its tables are keyed "roofline", and load nowhere
else. Run as `python -m runners.roofline`.
"""

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.config.gpu import GpuSpec, load_gpu
from evict_profile.physics import Work, layer_work, non_moe_work
from evict_profile.records import parse
from runners.measuring import Reading, sample
from runners.protocol import PARTS, Message, serve


class Service:
    """Holds the open model and the datasheet between requests."""

    model: ModelSpec
    gpu: GpuSpec

    def open(self, ask: Message) -> Message:
        self.model = parse(ModelSpec, ask["model"], "the request to open")
        self.gpu = load_gpu(ask["options"]["gpu"])
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
        latency_us = self._price_us(cell, union, ask["layers"] or self.model.moe_layers)
        return {
            "samples": [self._sample(cell, union, latency_us, s) for s in ask["seeds"]]
        }

    def _price_us(self, cell: Cell, union: float, layers: int) -> float:
        if cell.part == "non_moe":
            return self._bound_us(non_moe_work(self.model, cell))
        return layers * self._bound_us(layer_work(self.model, cell, union))

    def _bound_us(self, work: Work) -> float:
        rates = self.gpu.memory_bandwidth_gbps, self.gpu.bf16_dense_tflops
        return work.roofline_us(*rates)

    def _sample(
        self, cell: Cell, union: float, latency_us: float, seed: int
    ) -> Message:
        reading = Reading(latency_us, latency_us, float("nan"))
        answer = sample(seed, reading, cell.width, [cell.union], backend="roofline")
        return {**answer, "observed_union": union}


if __name__ == "__main__":
    service = Service()
    serve({"open": service.open, "measure": service.measure})

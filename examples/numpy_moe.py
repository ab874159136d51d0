"""The shortest runner: two layers of experts in numpy, and a matrix for all else.

A plan names it as `runner: examples/numpy_moe.py`.
"""

import numpy as np
import torch

from runners.clock import ReferenceClock, copy_bandwidth_gbps, cpu_now
from runners.device import describe
from runners.protocol import serve_session
from runners.session import Forward, MeasureSession
from runners.trees import force_unions, unions

CPU = torch.device("cpu")


class Session(MeasureSession):
    def __init__(self, model, options):
        super().__init__()
        self.moe, self.layers = model["moe"], 2
        hidden, width = model["hidden_size"], self.moe["expert_width"]
        sizes = (self.layers, self.moe["num_experts"], 3, hidden, width)
        self.rng = np.random.default_rng(options["seed"])
        self.experts = self.rng.standard_normal(sizes, np.float32)
        self.head = self.rng.standard_normal((hidden, model["vocab_size"]), np.float32)
        self.bytes_per_expert = self.experts[0, 0].nbytes
        self.bandwidth_gbps = copy_bandwidth_gbps(CPU)
        name = "process CPU time over reference"
        self.clock = ReferenceClock(name, cpu_now, lambda: self.head.sum())
        self.fingerprint = {
            **describe("numpy_moe", __file__, CPU),
            "layers": self.layers,
            "attention_backend": "none",
            "moe_backend": "numpy",
            "graph_mode": "eager",
            "clock": self.clock.name,
        }

    def answer_open(self):
        return {**super().answer_open(), "dtype": "float32"}

    def prepare(self, cell, layers, seed):
        tokens = cell["width"] * cell["batch"]
        x = self.rng.standard_normal((tokens, len(self.head)), np.float32)
        if cell["part"] == "non_moe":
            return Forward(lambda: x @ self.head, cell["width"], list)
        experts, top_k = self.moe["num_experts"], self.moe["top_k"]
        if cell["split"] == "natural":
            routes = torch.rand(layers, tokens, experts).topk(top_k).indices
        else:
            routes = force_unions(cell, layers, top_k, experts, seed)
        found = unions(routes)
        routes = routes.numpy()
        return Forward(lambda: self.run(x, routes), cell["width"], lambda: found)

    def run(self, x, routes):
        for weights, chosen in zip(self.experts, routes, strict=False):
            out = np.zeros_like(x)
            for expert in np.unique(chosen):
                rows = (chosen == expert).any(axis=1)
                gate, up, down = weights[expert]
                out[rows] += (np.tanh(x[rows] @ gate) * (x[rows] @ up)) @ down.T
            x = x + out


if __name__ == "__main__":
    serve_session(Session)

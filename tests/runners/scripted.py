"""A runner whose latency is a formula: a real process, exact and fast.

    clock_us = (FIXED + layers * slope * U + ROW * n * batch) * (1 + noise(seed))

where `slope` implies 0.7 of the bandwidth that the runner says it has.

The same seed gives the same clock, so two sweeps can be compared to the last digit.
Environment variables script what goes wrong; a place is a list of conditions on the
cell, such as "width=4 union=8":

    SCRIPTED_CRASH     place: the process ends without an answer
    SCRIPTED_HANG      place: there is no answer, ever
    SCRIPTED_RAISE     place: a handler raises
    SCRIPTED_HALF      place: the process ends in the middle of its answer
    SCRIPTED_OOM       place: refused, with kind "oom"
    SCRIPTED_WRONG     place: one expert more than asked for ran, and is reported
    SCRIPTED_NARROW    place: one token less than asked for ran, and is reported
    SCRIPTED_EARLY     place: the clock ends before it began
    SCRIPTED_MS        place: the moment is in milliseconds
    SCRIPTED_CHATTER   any value: prints to stdout, as libraries do
    SCRIPTED_SLOPE     factor on the slope of time in U; 0 ignores the union
    SCRIPTED_SLEEP     seconds that each sample takes on the wall clock
    SCRIPTED_DEVICE    name of the device in the fingerprint
    SCRIPTED_DTYPE     what "auto" opens in, with a reason
    SCRIPTED_WHOLE     layers: whole forwards of so many are timed; steps have clocks
    SCRIPTED_MUTE      any value: refuses to time steps
    RUNNER_JOURNAL     file that gets one line a sample: its seed
"""

import os
import random
import time
from pathlib import Path

from runners.protocol import Refusal, serve_session
from runners.session import Forward, Timing, make_sample

BANDWIDTH_GBPS = 10.0
SHARE = 0.7
FIXED_US, ROW_US = 200.0, 7.0
LAYERS = 2
NOISE = 0.02
FACTS = {"engine": "scripted", "engine_version": "1", "runner_sha256": "", "cuda": ""}
FACTS |= dict.fromkeys(("attention_backend", "moe_backend", "clock"), "formula")
FACTS |= {"device_kind": "cpu", "graph_mode": "none", "threads": 1, "tp": 1, "ep": 1}


def at(place, cell):
    """Whether the cell meets every condition of the variable named `place`."""
    pairs = [each.split("=") for each in os.environ.get(place, "").split()]
    return bool(pairs) and all(str(cell[key]) == value for key, value in pairs)


def note(line):
    if "RUNNER_JOURNAL" in os.environ:
        with Path(os.environ["RUNNER_JOURNAL"]).open("a") as journal:
            journal.write(f"{line}\n")


def answer_pipe():
    """The file descriptor that `serve` answers on: the one pipe beside stdin."""
    open_files = [p for p in Path("/proc/self/fd").iterdir() if int(p.name) > 2]
    return next(int(p.name) for p in open_files if "pipe:" in str(p.readlink()))


class Session:
    def __init__(self, model, options):
        self.whole = int(os.environ.get("SCRIPTED_WHOLE", "0"))
        self.layers = self.whole or LAYERS
        self.moe = model["moe"]
        self.expert_bytes = 6 * model["hidden_size"] * self.moe["expert_width"]
        us_per_expert = self.expert_bytes / (SHARE * BANDWIDTH_GBPS * 1e3)
        self.slope_us = us_per_expert * float(os.environ.get("SCRIPTED_SLOPE", "1"))
        self.auto = options["dtype"] == "auto" and os.environ.get("SCRIPTED_DTYPE")

    def answer_open(self):
        auto = self.auto
        return {
            "fingerprint": {
                **FACTS,
                "device": os.environ.get("SCRIPTED_DEVICE", "paper"),
                "layers": self.layers,
            },
            "capture_sizes": [],
            "bandwidth_gbps": BANDWIDTH_GBPS,
            "bytes_per_expert": self.expert_bytes,
            **({"dtype": auto, "dtype_reason": "said the script"} if auto else {}),
            **({"whole": True, "clocks": True} if self.whole else {}),
        }

    def answer_clock(self, ask):
        if "SCRIPTED_MUTE" in os.environ:
            raise Refusal("device", "no drafter, said the script")
        batch = ask["batch"]
        note(f"clock {batch}")
        fixed = {"fixed_us": 50.0, "plain_fixed_us": 20.0, "reference_us": None}
        return {"draft_us": [0.0, 100.0 * batch, 300.0 * batch], **fixed}

    def measure(self, ask):
        """Misbehave where the script says so; else answer one sample a seed."""
        cell = ask["cell"]
        if "SCRIPTED_CHATTER" in os.environ:
            print("a library says hello")
            os.write(1, b"and so does its C code\n")
        if at("SCRIPTED_CRASH", cell):
            os._exit(7)
        if at("SCRIPTED_HANG", cell):
            note("hangs")
            time.sleep(600)
        if at("SCRIPTED_HALF", cell):
            os.write(answer_pipe(), b'{"ok": true, "samp')
            os._exit(7)
        if at("SCRIPTED_RAISE", cell):
            raise ArithmeticError("the kernel met its end")
        if at("SCRIPTED_OOM", cell):
            raise Refusal("oom", "CUDA out of memory, said the script")
        layers = ask["layers"] or self.layers
        return {"samples": [self.sample(cell, seed, layers) for seed in ask["seeds"]]}

    def sample(self, cell, seed, layers):
        time.sleep(float(os.environ.get("SCRIPTED_SLEEP", "0")))
        tokens = cell["width"] * cell["batch"]
        draw = random.Random(seed)
        union = self.union(cell, tokens, draw)
        clock_us = FIXED_US + layers * self.slope_us * union + ROW_US * tokens
        note(seed)
        noisy_us = clock_us * (1.0 + NOISE * draw.uniform(-1.0, 1.0))
        if at("SCRIPTED_EARLY", cell):
            noisy_us = -37.0
        timing = Timing(noisy_us, float("nan"))
        width = cell["width"] - at("SCRIPTED_NARROW", cell)
        unions = [union] if union else []
        sample = make_sample(timing, Forward(int, width, lambda: unions))
        sample["at_unix"] *= 1e3 if at("SCRIPTED_MS", cell) else 1.0
        return sample

    def union(self, cell, tokens, draw):
        """Experts that "run": those asked for, or a draw where routing is natural."""
        if cell["part"] == "non_moe":
            return 0
        if cell["split"] == "natural":
            most = min(self.moe["num_experts"], tokens * self.moe["top_k"])
            return draw.randint(self.moe["top_k"], most)
        return int(cell["union"]) + at("SCRIPTED_WRONG", cell)


if __name__ == "__main__":
    serve_session(Session)

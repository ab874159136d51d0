"""The tests' engine: a tiny model, plain or with an EAGLE or MTP drafter.

    python -m tests.sglang.engine JOB.json

answers the batches of a file, in a process of its own: SGLang installs signal handlers,
and when its scheduler dies it kills the process that started it, which must not be that
of the tests.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from examples.sglang.demo import IDLE_S, eagle3, start_engine

MODELS = Path(__file__).parent / "models"
HEADS = {"EAGLE3": "draft", "EAGLE": "eagle"}
"""Models that draft beside the target; NEXTN drafts with a layer of its own kind."""


@dataclass(frozen=True)
class Tree:
    """The shape that is drafted: levels, children kept at each, nodes verified."""

    num_steps: int
    topk: int
    num_draft_tokens: int
    algorithm: str = "EAGLE3"

    def options(self):
        sizes = self.num_steps, self.topk, self.num_draft_tokens
        head = HEADS.get(self.algorithm)
        named = eagle3(MODELS / (head or ""), *sizes)
        if not head:
            del named["speculative_draft_model_path"]
        return {**named, "speculative_algorithm": self.algorithm}


def answer(path):
    job = json.loads(path.read_text())
    options = {
        "log_level": "info",
        "max_running_requests": 8,
        "disable_shared_experts_fusion": True,
        "tp_size": job["tp"],
    }
    if job["tree"]:
        options |= Tree(**job["tree"]).options()
    engine = start_engine(MODELS / job["target"], **options)
    said = []
    for batch in job["batches"]:
        asked = [
            {
                "temperature": 0,
                "max_new_tokens": request["max_new_tokens"],
                "stop_token_ids": request["stop"],
            }
            for request in batch
        ]
        prompts = [request["prompt"] for request in batch]
        outputs = engine.generate(input_ids=prompts, sampling_params=asked)
        said.append([output["output_ids"] for output in outputs])
    path.with_name("said.json").write_text(json.dumps(said))
    if os.environ.get("EVICT_PROFILE_MODE") == "observe":
        time.sleep(IDLE_S)
    engine.shutdown()


if __name__ == "__main__":  # the engine's processes import this file again
    answer(Path(sys.argv[1]))

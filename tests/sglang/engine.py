"""`sglang.Engine` on a CPU: a tiny Qwen3-MoE, plain or with an EAGLE-3 drafter.

Weights are dummies and there is no tokenizer: prompts and replies are token ids, and
what is said means nothing. It is enough to see that the plug-in loads, and that it
changes nothing of what is said. Needs the environment of `make .venv-sglang/ready`.

    python -m tests.sglang.engine JOB.json

answers the batches that a file asks, in a process of its own: SGLang installs signal
handlers, and when its scheduler dies it kills the process that started it, which must
not be that of the tests.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parent / "models"
GREEDY = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}


@dataclass(frozen=True)
class Tree:
    """The shape that EAGLE-3 drafts: levels, children kept at each, nodes verified."""

    num_steps: int
    topk: int
    num_draft_tokens: int


def server_arguments(tree=None):
    """The arguments of SGLang's server: plain decoding, or drafting such trees.

    float32, because the same tokens must come out whatever the width of a forward: in
    bfloat16 a sum's order can decide between two tokens.
    """
    plain = {
        "model_path": str(MODELS / "target"),
        "load_format": "dummy",
        "dtype": "float32",
        "device": "cpu",
        "attention_backend": "intel_amx",
        "sampling_backend": "pytorch",
        "skip_tokenizer_init": True,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "max_total_tokens": 4096,
        "mem_fraction_static": 0.2,
        "log_level": "warning",
    }
    if tree is None:
        return plain
    return plain | {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(MODELS / "draft"),
        "speculative_num_steps": tree.num_steps,
        "speculative_eagle_topk": tree.topk,
        "speculative_num_draft_tokens": tree.num_draft_tokens,
    }


def start_engine(tree=None, **changes):
    """A running engine; its caller shuts it down. `changes` are server arguments."""
    import sglang

    # Layers this small are slower on several threads, and many times so on busy cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return sglang.Engine(**server_arguments(tree) | changes)


def answer(path):
    """Write the replies beside the job."""
    job = json.loads(path.read_text())
    tree = Tree(**job["tree"]) if job["tree"] else None
    engine = start_engine(tree, log_level="info", max_running_requests=8)
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
    engine.shutdown()


if __name__ == "__main__":  # the engine's processes import this file again
    answer(Path(sys.argv[1]))

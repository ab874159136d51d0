"""What SGLang resolves its options to on a Hopper GPU; no GPU is needed.

    python pretended_gpu.py FOLDER

prints JSON by GPU memory in MiB, and in it by server: the session of the shipped plan
with trees and with chains, and the server of docs/use/sglang.md. A process of its own,
since what a platform is holds for all of a process.
"""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import torch

from evict_profile.config import load_model, load_sweep
from evict_profile.records import to_mapping
from evict_profile.sweep.grid import make_grid
from runners.sglang_verify.opening import make_plan
from runners.sglang_verify.server import server_options

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/use/sglang.md"
MEMORY_MIB = {"H100": 81_559, "H200": 143_771}
"""As nvidia-smi lists an H100 of 80 GB and an H200 of 141 GB."""

HOPPER = {"is_hopper_with_cuda_12_3": True, "is_sm90": True, "has_flashinfer": True}
GPU = torch.device("cuda")
STEPS = 5


def shipped_plan(folder):
    """The loading of `sweep qwen3-30b-a3b --plan sglang`, with trees."""
    spec, model = load_sweep("sglang"), load_model("qwen3-30b-a3b")
    cells = make_grid(spec, model).cells
    options = {
        "engine": spec.engine,
        "graphs": True,
        "seed": 0,
        "max_width": max(cell.width for cell in cells),
        "max_context": max(cell.context for cell in cells),
        "batches": sorted({cell.batch for cell in cells}),
    }
    return make_plan(to_mapping(model), options, GPU, "0.5.23", folder)


def documented_server(plan):
    """The command line of the page, of the plan's models."""
    found = re.search(r"sglang\.launch_server (--model-path [^`]*)", PAGE.read_text())
    words = found[1].replace("\\\n", " ").split()
    for option, folder in (
        ("--model-path", plan.target),
        ("--speculative-draft-model-path", plan.draft),
    ):
        words[words.index(option) + 1] = str(folder)
    return [*words, "--device", "cuda", "--load-format", "dummy"]


def resolve(args):
    if hasattr(args, "resolve_once"):
        args.resolve_once()
    from sglang.srt.arg_groups.overrides import resolved_view

    found = resolved_view(args)
    return {
        "attention_backend": found.attention_backend,
        "mem_fraction_static": found.mem_fraction_static,
        "max_total_tokens": found.max_total_tokens,
        "page_size": found.page_size,
        "decode_batches": found.cuda_graph_config.decode.bs,
    }


def pretend(memory_mib):
    from sglang.srt.arg_groups import memory_hook

    memory_hook.get_device_memory_capacity = lambda device: memory_mib


def resolved(folder):
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    runtime_context.override_platform(**HOPPER).install()
    trees = shipped_plan(folder)
    chains = replace(trees, topk=1, width=STEPS + 1)
    answers = {}
    for gpu, memory_mib in MEMORY_MIB.items():
        pretend(memory_mib)
        answers[gpu] = {
            name: resolve(ServerArgs(**server_options(plan, GPU), device="cuda"))
            for name, plan in (("trees", trees), ("chains", chains))
        }
        words = documented_server(trees)
        answers[gpu]["server"] = resolve(prepare_server_args(words))
    return answers


if __name__ == "__main__":
    os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
    print(json.dumps(resolved(Path(sys.argv[1]))))

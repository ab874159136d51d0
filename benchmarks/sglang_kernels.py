"""SGLang's own tree kernels on cut trees, against plain Python, on this device.

    PYTHONPATH=. SGLANG_PYTHON benchmarks/sglang_kernels.py --out kernels.json

For trees of a planted world, cut to each width: the mask that `build_tree_kernel`
writes lets a node see its ancestors and itself, positions are depths, and
`verify_tree_greedy` accepts what a walk in Python accepts, which is what the whole tree
accepts as far as the cut one reaches. On a GPU these are the compiled kernels; on a CPU
their stubs, of which nothing follows for a GPU.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import Answer, command
from benchmarks.sglang_planted.engine import device_name
from benchmarks.sglang_planted.world import PlantedWorld, Stage, accepted, draft
from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.graphs import spec_steps
from evict_profile.integrations.sglang.tree import Drafted, cut

REQUESTS, STEPS, TOPK, WIDTH, ROUNDS = 4, 5, 8, 64, 8
CONTEXT = 100


@command
def main(arguments: Sequence[str]) -> int:
    """Check every width; 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    answer = Answer(parser.parse_args(arguments).out, [])
    if find_spec("sglang") is None:
        raise ConfigError(
            f"{sys.executable}: has no SGLang; run this script with the Python of an "
            "environment that has it"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stage = Stage(PlantedWorld(vocabulary=50_000, topk=TOPK), REQUESTS, STEPS, device)
    wrong: dict[str, list[int]] = {}
    for seed in range(ROUNDS):
        for width in range(2, WIDTH + 1):
            for name in check(stage, seed, width):
                wrong.setdefault(name, []).append(width)
    found = {
        "device": device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "sglang": metadata.version("sglang"),
        "kernels": kernels(),
        "trees": ROUNDS * REQUESTS * (WIDTH - 1),
        "wrong": wrong,
    }
    answer.write(found)
    print(json.dumps(found))
    return 1 if wrong else 0


def kernels() -> dict[str, str]:
    """Versions of the packages that hold compiled kernels, where installed."""
    found = {}
    for name in ("sglang-kernel", "sgl-kernel", "flashinfer-python", "triton"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def check(stage: Stage, seed: int, width: int) -> list[str]:
    """What differs in one batch of trees of a width."""
    texts = torch.arange(REQUESTS, device=stage.place.device)
    lengths = CONTEXT + texts * 7 + seed * 131
    stage.set_scene(texts, lengths)
    whole = draft(stage, REQUESTS, WIDTH)
    kept = cut(whole, width)
    mask, positions, links, candidates = build(stage, kept, lengths)
    seen = visible(kept)
    roots = torch.zeros_like(whole.tokens[:, :1])  # which no check reads
    longest = accepted(whole, stage.says(torch.cat([roots, whole.tokens], 1)))
    counts, said = verify(stage, links, candidates)
    text = [stage.token[row, : n + 1].tolist() for row, n in enumerate(counts)]
    same = {
        "mask": torch.equal(mask, seen),
        "positions": torch.equal(positions, lengths[:, None] + seen.sum(-1) - 1),
        "accepted": counts == accepted(kept, stage.says(candidates)),
        "tokens": said == text,
        "more than the whole tree": all(map(int.__le__, counts, longest)),
    }
    return [name for name, is_same in same.items() if not is_same]


def build(stage: Stage, kept: Drafted, lengths: Tensor) -> tuple[Any, ...]:
    """Mask [requests, width, width], positions, links, candidates, by SGLang."""
    from sglang.srt.speculative.eagle_utils import (
        TreeMaskMode,
        build_tree_kernel_efficient,
    )

    width, requests = kept.width, len(lengths)
    mask, positions, *links, tokens = build_tree_kernel_efficient(
        torch.zeros_like(lengths),
        kept.parent_list,
        kept.index,
        kept.tokens,
        lengths,
        int(lengths.sum()),
        kept.topk,
        stage.steps,  # of the whole tree: they are the stride of `parent_list`
        width,
        tree_mask_mode=TreeMaskMode.QLEN_ONLY,
    )
    square = mask.view(requests, width, width)
    return square, positions.view(requests, width), links, tokens.view(requests, width)


def visible(kept: Drafted) -> Tensor:
    """bool [requests, width, width]: a node sees its ancestors and itself."""
    requests, width = len(kept.index), kept.width
    seen = torch.eye(width, dtype=torch.bool).repeat(requests, 1, 1)
    for row, above in enumerate(kept.parent.tolist()):
        for node, parent in enumerate(above, start=1):
            seen[row, node] |= seen[row, parent + 1]
    return seen.to(kept.index.device)


def verify(
    stage: Stage, links: list[Tensor], candidates: Tensor
) -> tuple[list[int], list[list[int]]]:
    """Drafted tokens that each request accepts, and all that it says, by SGLang."""
    from sglang.srt.speculative.eagle_utils import verify_tree_greedy_func

    requests, width = candidates.shape
    depth = spec_steps(width, stage.steps) + 1
    like: dict[str, Any] = {"dtype": torch.int32, "device": candidates.device}
    predicts, index, counts = verify_tree_greedy_func(
        predicts=torch.zeros(requests * width, **like),
        accept_index=torch.full((requests, depth), -1, **like),
        accept_token_num=torch.zeros(requests, **like),
        candidates=candidates,
        retrieve_index=links[0],
        retrieve_next_token=links[1],
        retrieve_next_sibling=links[2],
        target_predict=stage.says(candidates),
        topk=stage.world.topk,
    )
    nodes = index.tolist()
    said = [[int(predicts[node]) for node in row if node >= 0] for row in nodes]
    return counts.tolist(), said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

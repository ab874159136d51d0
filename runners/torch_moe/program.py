"""One forward of fixed sizes, ready to be run again and again on fresh inputs.

On a GPU it is a captured graph over static buffers, as serving engines replay it;
elsewhere it is run eagerly. Each sample draws its own tokens, tree and routes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runners.device import device_lost, first_line, out_of_memory
from runners.protocol import Refusal
from runners.torch_moe.attention import make_metadata
from runners.torch_moe.shape import MetaWeights, StackShape
from runners.torch_moe.stack import META, Stack
from runners.trees import (
    force_unions,
    random_parents,
    row_counts,
    tree_mask,
    unions,
)

CAPTURE_WARMUPS = 2


@dataclass(frozen=True)
class CellRequest:
    """A cell as the runner runs it: on so many layers, `tier` tokens a request."""

    part: str
    width: int
    union: int
    context: int
    batch: int
    split: str
    tier: int
    layers: int

    @property
    def program_key(self) -> tuple[object, ...]:
        """Requests of one key share buffers, and on a GPU one graph."""
        natural = self.split == "natural"
        return self.part, self.tier, self.context, self.batch, natural, self.layers


class Program:
    def __init__(
        self, stack: Stack, request: CellRequest, device: torch.device
    ) -> None:
        tokens, shape = request.batch * request.tier, stack.shape
        self.stack, self.shape, self.device = stack, shape, device
        self.part, self.forced = request.part, request.split != "natural"

        def zeros(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        self.routes = zeros(request.layers, tokens, shape.moe.top_k)
        self.hidden = zeros(tokens, shape.hidden, dtype=shape.dtype)
        self.token_ids = zeros(tokens)
        self.meta = make_metadata(
            shape, request.batch, request.tier, request.context, device
        )
        self.run: Callable[[], object] = self.run_eager
        own = self.routes, self.hidden, self.token_ids, self.meta.mask
        self.bytes = sum(buffer.nbytes for buffer in (*own, *self.meta.angles))

    def load(self, request: CellRequest, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        (parents,) = random_parents(1, request.tier, seed).tolist()
        self.meta.set_tree(tree_mask(parents))
        if request.part == "non_moe":
            size, vocab = self.token_ids.shape, self.shape.vocab
            self.token_ids.copy_(torch.randint(0, vocab, size, generator=generator))
            return
        self.hidden.copy_(torch.randn(self.hidden.shape, generator=generator))
        if self.forced:
            self.routes.copy_(draw_routes(self.shape, request, seed))

    def run_eager(self) -> Tensor:
        with torch.inference_mode():
            if self.part == "non_moe":
                return self.stack.run_non_moe(self.token_ids, self.meta)
            return self.stack.run_layers(
                self.hidden, self.meta, self.routes, self.forced
            )

    def capture(self, stream: torch.cuda.Stream, pool: Any) -> Any:
        """Replace eager running by the replay of a captured graph.

        Graphs share one memory pool: give each the pool that the first returned.
        They also share one side stream: cuBLAS keeps a workspace of its own for
        every stream that it ever ran on.
        """
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(CAPTURE_WARMUPS):
                self.run_eager()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self.run_eager()
        except RuntimeError as error:
            if out_of_memory(error) or device_lost(self.device):
                raise
            raise Refusal(
                "device",
                "the forward cannot be captured as a CUDA graph on "
                f"{torch.cuda.get_device_name()}: {first_line(error)}; set "
                "'graphs: false' in the sweep to measure eager mode",
            ) from error
        self.run = graph.replay
        # The first replay uploads the graph as well, which no sample is to pay.
        self.run()
        torch.cuda.synchronize()
        return graph.pool()

    def unions(self) -> list[int]:
        if self.part == "non_moe":
            return []
        return unions(self.routes)

    def row_counts(self) -> set[int]:
        if self.part == "non_moe" or not self.forced:
            return set()
        return row_counts(self.routes, self.shape.moe.num_experts)


def kept_bytes(
    shape: StackShape, layers: int, places: Iterable[tuple[int, int, int]]
) -> int:
    """Memory of all programs of a sweep, kept to its end: at each place (width,
    context, batch) those of forced and of free layers, and of what is no layer."""
    stack = Stack(shape, (0, 0), MetaWeights(META, shape.dtype))
    asked = (CellRequest("", n, 0, c, b, "", n, layers) for n, c, b in places)
    return 3 * sum(Program(stack, each, META).bytes for each in asked)


def draw_routes(shape: StackShape, request: CellRequest, seed: int) -> Tensor:
    """Routes [layers, batch * tier, k]: padding repeats its request's last token."""
    moe = shape.moe
    routes = force_unions(
        vars(request), request.layers, moe.top_k, moe.num_experts, seed
    )
    rows = torch.arange(request.tier).clamp(max=request.width - 1)
    rows = (torch.arange(request.batch).unsqueeze(1) * request.width + rows).flatten()
    return routes[:, rows]

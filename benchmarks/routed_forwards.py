"""Forwards of a verification whose routers budget_overhead.py times, and their clock.

A world's tokens are held-out text behind more of it; another model has real shapes and
random weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from runners.torch_moe.clocks import CudaClock
from runners.torch_moe.model import MoeLayer
from runners.torch_moe.noise import Noise
from runners.torch_moe.program import Program, Request
from runners.torch_moe.shape import read_shape
from runners.torch_moe.stack import Stack
from runners.tree_decoding.clocks import now

WARM_UPS = 3
Run = Callable[[], object]
Time = Callable[[Run], float]


@dataclass(frozen=True)
class Forward:
    """A whole verification, and the layers whose routers it runs."""

    layers: Sequence[MoeLayer]
    run: Run
    in_graph: bool = False


def clock_of(device: torch.device, in_graph: bool) -> Time:
    """Microseconds of one run."""
    if in_graph:
        cuda = CudaClock(device)
        return lambda run: cuda.time(run).clock_us

    def timed(run: Run) -> float:
        begun = now(device)
        run()
        return (now(device) - begun).us

    return timed


def world_forward(
    folder: str, tokens: int, context: int, device: torch.device
) -> Forward:
    """The small world's target reads held-out text, its last tokens in one forward."""
    # Here, because a GPU machine need not have what worlds are stored with.
    from runners.tree_decoding.head import causal
    from runners.tree_decoding.layout import Hall, Place, make_layout
    from runners.tree_decoding.text import HeldOut, open_world
    from runners.tree_decoding.verifier import Verifier

    world = open_world(folder)
    verifier = Verifier(world.target, 1, context + tokens, device)
    hall = Hall(context + tokens, world.target.shape.head_dim, device)
    text = HeldOut(world).streams["prose"][: context + tokens].long().to(device)
    places = np.arange(context + tokens)
    read = Place(0, 0, causal(context), places[:context])
    routes = verifier.routes(context)
    verifier.verify(text[:context], make_layout([read], hall), routes)
    layout = make_layout([Place(0, context, causal(tokens), places[context:])], hall)
    routes = verifier.routes(tokens)
    ids = text[context:]
    return Forward(verifier.stack.moe, lambda: verifier.verify(ids, layout, routes))


def model_forward(
    name: str, layers: int, tokens: int, context: int, device: torch.device
) -> Forward:
    """Layers of a model's shape, on random input; a captured graph on a GPU."""
    shape = read_shape(asdict(load_model(name)), layers)
    if shape.moe.router != "softmax":
        raise ConfigError(f"{name}: its router is not a softmax; choose another model")
    stack = Stack(shape, (1, context + tokens), Noise(device, shape.dtype, 0))
    cell = ("layers", tokens, 0, context, 1, "natural")
    request = Request(*cell, tier=tokens, layers=layers)
    program = Program(stack, shape, request, device)
    program.load(request, seed=0)
    on_gpu = device.type == "cuda"
    if on_gpu:
        program.capture(torch.cuda.Stream(), None)
    return Forward(stack.moe, program.run, in_graph=on_gpu)


def captured(run: Run) -> Run:
    """The replay of a CUDA graph of it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay

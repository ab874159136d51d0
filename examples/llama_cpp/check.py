"""The self-test at open: does this library do what was set, and run what was forced?

Structs of another layout than assumed fail silently. So a tiny known model is decoded
first, on its own routes and on forced ones, and compared with the same sums in numpy.
Then the model to measure: its hook fires once a MoE layer, its own routes written back
change nothing, and others do.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from examples.llama_cpp.engine import ContextSize, Model
from examples.llama_cpp.hook import Hook, Routes
from examples.llama_cpp.options import Options
from examples.llama_cpp.toy import ToyShape, write_toy
from runners.clock import REFERENCE_RUNS, ReferenceClock, wall_now
from runners.protocol import Refusal

TOLERANCE = 0.02
"""Of the largest logit: the cache and some products of a build are half precision."""
SAME = 1e-5

MAX_LOAD = 0.3
MAX_SPREAD = 0.10
"""Interquartile range of the reference over its median, where wall time is read."""


def check_idle(clock: ReferenceClock) -> None:
    """Refuse wall time beside other work.

    Several threads wait for each other at every node: beside any other load they take
    up to thirty times as long.
    """
    if clock.now is not wall_now:
        return
    load = os.getloadavg()[0]
    times = [clock.time_reference() for _ in range(REFERENCE_RUNS)]
    low, middle, high = np.percentile(times, [25, 50, 75])
    spread = (high - low) / middle
    if load > MAX_LOAD or spread > MAX_SPREAD:
        raise Refusal(
            "device",
            f"the load is {load:.1f} and a reference decode spreads by {spread:.0%}: "
            f"several threads are timed on an idle machine alone (load under "
            f"{MAX_LOAD}, spread under {MAX_SPREAD:.0%}); quiet it, or set threads: 1",
        )


def check_library(library: Path) -> None:
    """Decode a tiny known model."""
    shape, token = ToyShape(), 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.gguf"
        orders = write_toy(path, shape)
        weights = {
            tensor.name.removesuffix(".weight"): np.array(tensor.data)
            for tensor in GGUFReader(path).tensors
        }
        model = Model(library, path, Options())
        hook = Hook(model, ContextSize(1, 256, 8))
        hook.context.fill([token], 0, [0])
        own = hook.read("one", hook.context.decode)
        _check_tiny("natural", hook, expected_logits(weights, shape, token, own))
        window = (token + np.arange(shape.top_k)) % shape.experts
        expected = [set(order[window]) for order in orders]
        if [set(layer[0]) for layer in own] != expected:
            raise Refusal("device", f"{library}: routes read are not the known ones")
        hook.context.cut(0, 0)
        others = [(layer + 1) % shape.experts for layer in own]
        hook.prepare("one", others)
        hook.write(hook.context.decode)
        _check_tiny("forced", hook, expected_logits(weights, shape, token, others))
        hook.context.close()
        model.close()


def _check_tiny(routing: str, hook: Hook, expected: np.ndarray) -> None:
    miss = np.abs(hook.context.logits()[0] - expected).max() / np.abs(expected).max()
    if not miss <= TOLERANCE:
        raise Refusal(
            "device",
            f"the logits of a known model with {routing} routing are off by "
            f"{miss:.1%}; this build of llama.cpp differs from what is known of it: "
            "try another, and report its version",
        )


def expected_logits(
    weights: dict[str, np.ndarray], shape: ToyShape, token: int, routes: Routes
) -> np.ndarray:
    """Logits float64 [vocab] of one token at position 0, on routes [1, k] a layer.

    One token attends to itself alone: attention passes its value on.
    """
    x = weights["token_embd"][token].astype(np.float64)
    for layer in range(shape.layers):
        own = {
            name.removeprefix(f"blk.{layer}."): values
            for name, values in weights.items()
            if name.startswith(f"blk.{layer}.")
        }
        x = x + own["attn_output"] @ (own["attn_v"] @ _norm(x))
        rows = _norm(x)
        scores = np.exp(own["ffn_gate_inp"] @ rows)
        chosen = routes[layer][0]
        shares = scores[chosen] / scores[chosen].sum()
        for expert, share in zip(chosen, shares, strict=True):
            gate = own["ffn_gate_exps"][expert] @ rows
            gate = gate / (1.0 + np.exp(-gate))
            middle = gate * (own["ffn_up_exps"][expert] @ rows)
            x = x + share * (own["ffn_down_exps"][expert] @ middle)
    return weights["output"] @ _norm(x)


def _norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean() + 1e-6)


def check_model(hook: Hook, ids: np.ndarray, layers: int, experts: int) -> bool:
    """Check that this model's routes can be read and forced, on tokens in sequence 0,
    which must be empty; whether the end of its cache can be cut, as no recurrent
    state's can."""
    context, key = hook.context, "check"
    context.fill(ids, 0, [0])
    own = hook.read(key, context.decode)
    if len(own) != layers:
        raise Refusal(
            "infeasible",
            f"the eval callback saw routes of {len(own)} MoE layers and the file holds "
            f"{layers}: this architecture cannot be forced",
        )
    before = context.logits()
    if not context.cut(0, 0):
        raise Refusal("infeasible", "this model's cache cannot be emptied")
    can_cut = _can_be_cut(hook, ids)
    changes = []
    for routes in (own, [(layer + 1) % experts for layer in own]):
        context.fill(ids, 0, [0])
        hook.prepare(key, routes)
        hook.write(context.decode)
        changes.append(np.abs(context.logits() - before).max() / np.abs(before).max())
        context.cut(0, 0)
    if changes[0] > SAME or changes[1] <= SAME:
        raise Refusal(
            "infeasible",
            f"its own routes written back change the logits by {changes[0]:.1e}, other "
            f"experts by {changes[1]:.1e}: forcing does not work on this model",
        )
    return can_cut


def _can_be_cut(hook: Hook, ids: np.ndarray) -> bool:
    """Whether the tail of a sequence can go while its head stays."""
    hook.context.prefill(ids, 0)
    tail = hook.context.cut(0, len(ids) - 1)
    return hook.context.cut(0, 0) and tail

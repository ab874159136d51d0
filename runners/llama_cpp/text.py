"""The text that a sweep decodes, in stretches that activate as many experts as most do.

Stretches of a text differ: nine tokens of a small model's replies activated 20 experts
a layer with a standard deviation of 4. So each token's experts are read once at open,
and of many stretches the one is decoded whose union is nearest their mean.
"""

import argparse
import inspect
from pathlib import Path
from typing import NamedTuple

import numpy as np

from runners.llama_cpp.engine import Model
from runners.llama_cpp.hook import Hook, Routes
from runners.protocol import Message, Refusal

ROUTED = 1024
"""Tokens of the text, from its start, that stretches are drawn from."""
AT_ONCE = 64
"""Of which a decode takes so many: each has a row of logits."""
DRAWS = 64


class DecodeWindow(NamedTuple):
    """What runs right before a cell, what it decodes, int64 [batch * width] each, and
    how many of these tokens activate an expert, int64 [layers, experts]."""

    before: np.ndarray
    own: np.ndarray
    activated: np.ndarray

    def among_activated(self, routes: Routes, seed: int) -> Routes:
        """The same routes over other experts: the text's most activated.

        The step before has just read some of them, and caches hold those. Experts
        drawn from all took 2 to 6 % longer on a model of 1.2 GB.
        """
        chance = np.random.default_rng(seed).random(self.activated.shape)
        by_use = np.lexsort((chance, -self.activated), axis=1).astype(np.int32)
        return [
            order[np.unique(layer, return_inverse=True)[1].reshape(layer.shape)]
            for layer, order in zip(routes, by_use, strict=True)
        ]


class Text:
    """Tokens of a file, Python code by default, repeated until there are `least`; and
    whether each activates an expert, bool [ROUTED, layers, experts]."""

    def __init__(self, path: str, model: Model, least: int) -> None:
        file = Path(path or inspect.getfile(argparse))
        try:
            tokens = model.tokens(file.read_bytes())
        except OSError as error:
            raise Refusal("infeasible", f"{file}: {error.strerror}") from error
        if not len(tokens):
            raise Refusal("infeasible", f"{file}: holds no text")
        self.name = file.name
        self.tokens = np.resize(tokens, max(len(tokens), ROUTED, least))
        self.activates = np.zeros((ROUTED, 0, 0), bool)

    def read_routes(self, hook: Hook, experts: int, longest: int) -> None:
        """Read each token's experts in sequence 0, which has room for `longest`."""
        parts, context = [], hook.context
        at_once = min(AT_ONCE, longest)
        for start in range(0, ROUTED, at_once):
            context.cut(0, 0)
            context.fill(self.tokens[start : min(start + at_once, ROUTED)], 0, [0])
            parts.append(np.stack(hook.read("text", context.decode), axis=1))
        routes = np.concatenate(parts)
        self.activates = np.zeros((*routes.shape[:2], experts), bool)
        np.put_along_axis(self.activates, routes, True, axis=2)

    def draw(self, cell: Message, seed: int) -> DecodeWindow:
        """A stretch of the text for each request, and what comes right before it."""
        width, batch = cell["width"], cell["batch"]
        starts = np.random.default_rng(seed).integers(
            width, ROUTED - width + 1, (DRAWS, batch, 1)
        )
        drawn = (starts + np.arange(width)).reshape(DRAWS, -1)
        unions = np.array([self.union(own) for own in drawn])
        own = drawn[np.abs(unions - unions.mean()).argmin()]
        activated = self.activates[own].sum(axis=0)
        return DecodeWindow(self.tokens[own - width], self.tokens[own], activated)

    def union(self, places: np.ndarray) -> float:
        """Distinct experts of the tokens at these places, mean of the layers."""
        return float(self.activates[places].any(axis=0).sum(axis=-1).mean())

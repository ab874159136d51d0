"""The text that a sweep decodes, in windows whose union is close to the mean.

Windows differ: nine tokens of a small model's replies activated 20 experts a layer with
a standard deviation of 4. So each token's experts are read once at open. Of `DRAWS`
windows the one is decoded whose union is nearest their mean.
"""

import argparse
import inspect
from pathlib import Path
from typing import NamedTuple

import numpy as np

from examples.llama_cpp.engine import Model
from examples.llama_cpp.hook import Hook, Routes
from runners.protocol import Message, Refusal

ROUTED = 1024
"""Windows are drawn from so many first tokens of the text."""
ROUTED_BATCH = 64
"""Tokens of one decode while routes are read; each token has a row of logits."""
DRAWS = 64


class DecodeWindow(NamedTuple):
    """The tokens of a cell.

    Attributes:
        before: tokens of the step before, int64 [batch * width].
        own: tokens that the cell decodes, int64 [batch * width].
        activated: own tokens that activate each expert, int64 [layers, experts].
    """

    before: np.ndarray
    own: np.ndarray
    activated: np.ndarray

    def with_most_used_experts(self, routes: Routes, seed: int) -> Routes:
        """The same routes over the experts that the window activates most.

        Caches hold those that the step before has read. Experts drawn from all took 2
        to 6 % longer on a model of 1.2 GB.
        """
        chance = np.random.default_rng(seed).random(self.activated.shape)
        by_use = np.lexsort((chance, -self.activated), axis=1).astype(np.int32)
        return [
            order[np.unique(layer, return_inverse=True)[1].reshape(layer.shape)]
            for layer, order in zip(routes, by_use, strict=True)
        ]


class Text:
    """At least `least` tokens of a file; Python code by default.

    `activates` says which experts each token runs, bool [ROUTED, layers, experts].
    """

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
        """Read each token's experts, in a sequence of at most `longest` tokens."""
        parts, context = [], hook.context
        at_once = min(ROUTED_BATCH, longest)
        for start in range(0, ROUTED, at_once):
            context.cut(0, 0)
            context.fill(self.tokens[start : min(start + at_once, ROUTED)], 0, [0])
            parts.append(np.stack(hook.read("text", context.decode), axis=1))
        routes = np.concatenate(parts)
        self.activates = np.zeros((*routes.shape[:2], experts), bool)
        np.put_along_axis(self.activates, routes, True, axis=2)

    def draw(self, cell: Message, seed: int) -> DecodeWindow:
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

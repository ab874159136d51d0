"""Decoding a few prompts under a policy, and policies to decode under."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from evict_profile.stats import Bools, Floats, Ints
from runners.tree_decoding.accept import sampling
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.engine import Engine
from runners.tree_decoding.policy import Always

CPU = torch.device("cpu")
PLAIN = Always(0, 1)


class Erratic:
    """Drafts and keeps as a seed says: another depth and other widths in each step."""

    depth = 4

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """Mostly; sometimes not even the first level."""
        return bool(self.rng.random() < 0.7)

    def keep(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> Bools:
        """As many of each request's best as a die says."""
        kept = np.zeros(path_prob.shape, dtype=np.bool_)
        for row, own in zip(kept, path_prob, strict=True):
            best = np.argsort(-own, kind="stable")
            row[best[: self.rng.integers(0, len(own) + 1)]] = True
        return kept

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


@dataclass
class Decoder:
    """Prompts of different lengths, each with noise of its own."""

    world: Checkpoint
    engine: Callable[[int], Engine]

    def prompt(self, request: int) -> list[int]:
        """Random tokens."""
        rng = np.random.default_rng(request)
        vocab = self.world.target.shape.vocab
        return rng.integers(0, vocab, 5 + 3 * request).tolist()

    def start(self, batch: int, temperature: float = 0.0) -> Engine:
        """An engine whose slots are taken."""
        engine, vocab = self.engine(batch), self.world.target.shape.vocab
        for slot in range(batch):
            drawn = sampling(temperature, slot, 64, vocab, CPU)
            engine.admit(self.prompt(slot), drawn, slot)
        return engine

    def replies(
        self, policy: object, batch: int, temperature: float = 0.0, tokens: int = 24
    ) -> list[list[int]]:
        """The first tokens of each reply."""
        engine = self.start(batch, temperature)
        while min(len(r.reply) for r in engine.requests) < tokens:
            engine.step(policy)
        return [r.reply[:tokens] for r in engine.requests]

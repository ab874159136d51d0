"""A target and drafter of random weights, text for them, and policies."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

from evict_profile.replay.policies import Fixed
from evict_profile.runtime.scoring import GrowingTrees
from examples.small_world.engine.accept import make_sampler
from examples.small_world.engine.checkpoint import Checkpoint, load_stack
from examples.small_world.engine.drafter import Drafter, TargetShape
from examples.small_world.engine.engine import Engine
from examples.small_world.engine.tree import TreeShape, best_first
from examples.small_world.target import Target

CPU = torch.device("cpu")
VOCAB, LAYERS, EXPERTS, TOP_K, HIDDEN = 12, 3, 8, 2, 32
TREE = TreeShape(depth=3, topk=3, nodes=10)
PROMPT_TOKENS = 12

SHAPE = TargetShape(
    vocab=VOCAB,
    hidden=HIDDEN,
    layers=LAYERS,
    heads=4,
    key_heads=2,
    head_dim=8,
    experts=EXPERTS,
    top_k=TOP_K,
    expert_width=16,
)
"""Three layers of eight experts; a vocabulary so small that drafts are right."""


def make_target():
    torch.manual_seed(3)
    return Target(SHAPE).eval()


def named_weights(target):
    return {f"target.{n}": p.detach() for n, p in target.named_parameters()}


def make_checkpoint(device=CPU):
    stack = load_stack(SHAPE, named_weights(make_target()), device)
    drafter = Drafter(SHAPE, 32).eval().to(device)
    return Checkpoint(SHAPE, stack, drafter, Tokenizer(models.BPE()), {"model": "any"})


def trained_target(folder):
    about = json.loads((folder / "world.json").read_text())
    target = Target(TargetShape(**about["shape"]))
    tensors = load_file(folder / "weights.safetensors")
    stored = {n: tensors[f"target.{n}"].float() for n, _ in target.named_parameters()}
    target.load_state_dict(stored)
    return target.eval()


class Text:
    """Held-out text of random tokens, and prompts one after the other."""

    def __init__(self, tokenizer):
        generator = torch.Generator().manual_seed(0)
        self.streams = {"prose": torch.randint(VOCAB, (500,), generator=generator)}

    def available(self, workload, tokens):
        return len(self.streams[workload]) // tokens

    def prompts(self, workload, count, tokens):
        stream = self.streams[workload].tolist()
        return [stream[i * tokens : (i + 1) * tokens] for i in range(count)]


def fixed(depth, width):
    return Fixed("fixed", depth, width)


PLAIN = fixed(0, 1)


class Erratic:
    """Drafts and keeps as a seed says: another depth and other widths in each step."""

    name, depth = "erratic", 4

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def begin(self, batch, context, nodes):
        self.trees = GrowingTrees(batch)
        self.extend, self.nodes = self.trees.grow, nodes
        return self

    def deeper(self):
        return bool(self.rng.random() < 0.7)

    def keep(self):
        kept = np.zeros(self.trees.scores.shape, dtype=np.bool_)
        for row, own in zip(kept, self.trees.scores, strict=True):
            best = np.argsort(-own, kind="stable")
            most = min(int((own > 0.0).sum()), self.nodes)
            row[best[: self.rng.integers(0, most + 1)]] = True
        return kept

    def observe(self, committed, step_us):
        """Learns nothing."""


def best_of(trees, nodes):
    """The nodes of highest path probability, in the order they were drafted."""
    return trees.take(np.sort(best_first(trees.path_prob)[:, :nodes], axis=1))


@dataclass
class Decoder:
    """Prompts of different lengths, each with noise of its own."""

    engine: Callable[[int], Engine]

    def prompt(self, request):
        rng = np.random.default_rng(request)
        return rng.integers(0, VOCAB, 5 + 3 * request).tolist()

    def start(self, batch, temperature=0.0):
        engine = self.engine(batch)
        for slot in range(batch):
            sampler = make_sampler(temperature, slot, 64, VOCAB, CPU)
            engine.admit(self.prompt(slot), sampler, slot)
        return engine

    def replies(self, policy, batch, temperature=0.0, tokens=24):
        engine = self.start(batch, temperature)
        while min(len(r.reply) for r in engine.requests) < tokens:
            engine.step(policy)
        return [r.reply[:tokens] for r in engine.requests]

"""Held-out text for the engine to continue."""

from pathlib import Path

import torch

from runners.protocol import Refusal
from runners.small_world.text import WORKLOADS, read_held_out, standard_library
from runners.small_world.tokens import encode_corpus
from runners.small_world.weights import (
    ABOUT,
    TOKENIZER,
    WEIGHTS,
    SmallWorld,
    load_world,
)


def open_world(folder: str) -> SmallWorld:
    """A trained world.

    Raises:
        Refusal: the folder holds none, or one that is damaged.
    """
    path = Path(folder)
    files = (ABOUT, WEIGHTS, TOKENIZER)
    if missing := [name for name in files if not (path / name).is_file()]:
        raise Refusal(
            "world",
            f"{folder}: holds no trained world (without {', '.join(missing)}); "
            f"{_elsewhere(path)}train one with: python runners/train_small_world.py "
            f"--out {folder}",
        )
    return load_world(path)


def _elsewhere(path: Path) -> str:
    """A sweep, and so a table, names its world as seen from the checkout."""
    if path.is_absolute():
        return ""
    return (
        f"the path is taken from {Path.cwd()}: run the same command in the checkout "
        "that holds this world, or "
    )


class HeldOut:
    """Streams of token ids that training never saw, by workload."""

    def __init__(self, world: SmallWorld) -> None:
        corpus = read_held_out(standard_library())
        self.streams = encode_corpus(corpus, world.tokenizer).held_out

    def prompts(self, workload: str, count: int, tokens: int) -> list[list[int]]:
        """So many prompts, evenly spaced over a workload.

        Raises:
            Refusal: no such workload, or not so much text.
        """
        if workload not in self.streams:
            raise Refusal(
                "world", f"no workload {workload}; there are {', '.join(WORKLOADS)}"
            )
        stream = self.streams[workload]
        if count > self.available(workload, tokens):
            raise Refusal(
                "world",
                f"{count} prompts of {tokens} tokens were asked for, and {workload} "
                f"has text for {self.available(workload, tokens)}; ask for fewer",
            )
        starts = torch.linspace(0, len(stream) - tokens - 1, count).long()
        return [stream[at : at + tokens].tolist() for at in starts.tolist()]

    def available(self, workload: str, tokens: int) -> int:
        """Prompts of so many tokens that do not overlap."""
        return len(self.streams[workload]) // tokens

"""What the score of a drafted chain costs a level, on this CPU.

    python -m benchmarks.chain_scores

SGLang takes the best token of a level by an argmax over the logits; the plug-in takes
its probability from the same logits. Both stand beside the head that makes the logits,
the least that a level computes. Medians of rounds in which all three take turns.
"""

import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace

import torch
from rich.console import Console

from evict_profile.integrations.sglang.tree import best_probability
from evict_profile.report.console import Rows, print_rows

HIDDEN, VOCABULARY = 2048, 151_936
"""Qwen3-30B-A3B's."""

ROUNDS = 15


def times_us(rows: int, head: torch.Tensor) -> dict[str, float]:
    """Medians at a batch of chains."""
    hidden = torch.randn(rows, HIDDEN)
    logits = SimpleNamespace(next_token_logits=hidden @ head)
    stages: dict[str, Callable[[], object]] = {
        "head": lambda: hidden @ head,
        "argmax": lambda: torch.argmax(logits.next_token_logits, -1, keepdim=True),
        "score": lambda: best_probability(logits),
    }
    taken: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(ROUNDS):
        for name, run in stages.items():
            begun = time.process_time()
            run()
            taken[name].append(1e6 * (time.process_time() - begun))
    return {name: median(each) for name, each in taken.items()}


def main() -> None:
    torch.set_num_threads(1)
    head = torch.randn(HIDDEN, VOCABULARY)
    found = {rows: times_us(rows, head) for rows in (1, 4, 16, 64)}
    columns: dict[str, Callable[[int], object]] = {
        "requests": lambda rows: rows,
        "head, us": lambda rows: f"{found[rows]['head']:.0f}",
        "argmax, us": lambda rows: f"{found[rows]['argmax']:.0f}",
        "score, us": lambda rows: f"{found[rows]['score']:.0f}",
        "score / head": lambda rows: (
            f"{found[rows]['score'] / found[rows]['head']:.3f}"
        ),
    }
    print_rows(Console(), Rows.of(list(found), columns), "a level of a chain")


if __name__ == "__main__":
    main()

"""Trains a small world: a mixture-of-experts language model and its draft head.

In it everything that replay and verdict need is real: routing that was learned, drafts
that are sometimes right, text of two difficulties (the code and the prose of Python's
standard library, split by file).

    python -m examples.small_world --out runs/world                  # 2 cores
    python -m examples.small_world --out runs/tiny --recipe tiny     # seconds

In the folder: weights.safetensors (fp16), tokenizer.json, and world.json, which says
what they are.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from examples.small_world import weights
from examples.small_world.corpus import (
    Tokens,
    digest,
    encode_corpus,
    train_tokenizer,
)
from examples.small_world.recipe import RECIPES, Recipe
from examples.small_world.training import Models, Training
from runners.tree_decoding.checkpoint import TOKENIZER, WEIGHTS
from runners.tree_decoding.corpus import Document, read_corpus, standard_library

PHASES = ("target", "drafter")
CPU_THREADS = 2


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="cpu")
    parser.add_argument("--minutes", type=float, help="time for everything")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    recipe = RECIPES[asked.recipe]
    minutes = recipe.minutes if asked.minutes is None else asked.minutes
    # Not `<= 0`: that lets nan through.
    if not minutes > 0.0:
        parser.error(f"--minutes {minutes:g}: must be a number above 0")
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(
            f"--out {asked.out}: {error.strerror}; name a folder for the world"
        )
    train(asked.out, recipe, minutes, asked.seed)


def train(out: Path, recipe: Recipe, minutes: float, seed: int) -> None:
    """Train both models of a recipe, and write their weights."""
    say("reading the standard library")
    corpus = read_corpus(standard_library(), False)
    tokenizer = prepare_tokenizer(out / TOKENIZER, corpus, recipe.shape.vocab)
    tokens = encode_corpus(corpus, tokenizer)
    say(f"{len(tokens.train):,} tokens to train on")
    models = Models(recipe, seed, pick_device())
    run_phases(models, tokens, minutes)
    parameters = sum(p.numel() for p in models.target.parameters())
    about = {
        "model": f"small-world-{parameters / 1e6:.3g}m",
        "seed": seed,
        "corpus": digest(corpus),
        "python": sys.version.split()[0],
    }
    weights.export(out, models, about | {"torch": torch.__version__})
    size = sum((out / f).stat().st_size for f in (WEIGHTS, TOKENIZER))
    say(f"{out / WEIGHTS}: {size / 1e6:.1f} MB with its tokeniser")


def run_phases(models: Models, tokens: Tokens, minutes: float) -> None:
    """The target, then the drafter."""
    for phase in PHASES:
        for line in Training(models, tokens, phase, minutes).run():
            say(line)


def prepare_tokenizer(path: Path, corpus: list[Document], vocab: int) -> Tokenizer:
    """The tokeniser at a path, trained and put there at first."""
    if not path.exists():
        train_tokenizer(corpus, vocab).save(str(path))
    return Tokenizer.from_file(str(path))


def pick_device() -> torch.device:
    """A GPU where there is one; else the CPU, with few threads."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    torch.set_num_threads(CPU_THREADS)
    return torch.device("cpu")


def say(line: str) -> None:
    print(line, flush=True)


def restart_quietly() -> None:
    """Run the same command with threads that sleep while they wait.

    They would spin instead, and beside other work that made training five times slower.
    What decides it is read from the environment when torch is loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    restart_quietly()
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("interrupted")

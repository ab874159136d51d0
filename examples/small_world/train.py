"""Trains both models of a recipe, from text to weights."""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from evict_profile.io import make_folder
from examples.small_world import weights
from examples.small_world.corpus import (
    Tokens,
    digest,
    encode_corpus,
    train_tokenizer,
)
from examples.small_world.engine.checkpoint import TOKENIZER, WEIGHTS
from examples.small_world.engine.corpus import Document, read_corpus, standard_library
from examples.small_world.recipe import Recipe
from examples.small_world.training import Models, Training

PHASES = ("target", "drafter")
CPU_THREADS = 2


def train(out: Path, recipe: Recipe, minutes: float, seed: int) -> None:
    """Train both models, and write their weights into a folder."""
    make_folder(out)
    say("reading the standard library")
    corpus = read_corpus(standard_library())
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

"""A world of a few thousand weights, random or trained, and a library of three files.

Random weights: what no policy may change must not change there.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evict_profile.table import CostTable
from evict_profile.traces import TraceInfo
from examples.small_world.corpus import Tokens
from examples.small_world.engine import measuring
from examples.small_world.engine import session as session_module
from examples.small_world.engine.engine import Engine
from examples.small_world.engine.tree import TreeShape
from examples.small_world.recipe import RECIPES
from tests.examples.small_world.engine.decoding import (
    EXPERTS,
    LAYERS,
    TOP_K,
    Decoder,
    Text,
    make_checkpoint,
    make_target,
)
from tests.shipped import tracked

# Products this small gain nothing from threads, which wait for each other busily.
torch.set_num_threads(1)

SOURCE = '''"""What {name} is for, at some length: it adds numbers, and says so."""
import sys
# A remark of some length that stands on a line of its own.
def add_{name}(first, second):
    """The sum of first and second, whatever they are, as {name} has it."""
    return first + second  # behind code
'''


@pytest.fixture
def recipe():
    """The tiny recipe in single precision, in which equality can be asked for."""
    return replace(RECIPES["tiny"], autocast=False)


@pytest.fixture
def shape(recipe):
    return recipe.shape


def write_library(root):
    """A folder as the standard library is one, with files on both sides."""
    (root / "test").mkdir(parents=True)
    for name in [f"module{i}" for i in range(40)] + ["test/test_module"]:
        text = SOURCE.format(name=Path(name).name) * 4
        (root / f"{name}.py").write_text(text)
    return root


@pytest.fixture
def library(tmp_path):
    return write_library(tmp_path / "library")


@pytest.fixture(scope="module")
def module_library(tmp_path_factory):
    return write_library(tmp_path_factory.mktemp("source") / "library")


@pytest.fixture
def tokens(shape):
    generator = torch.Generator().manual_seed(5)

    def stream(size):
        return torch.randint(shape.vocab, (size,), generator=generator)

    held_out = {"code": stream(200), "prose": stream(200)}
    return Tokens(stream(2000), held_out)


@pytest.fixture(scope="session")
def informed_table():
    """The shipped table, with its acceptance, activation and drafting."""
    (path,) = tracked("examples/small_world/cost_tables/intel-*.json")
    return CostTable.load(path)


@pytest.fixture(scope="session")
def checkpoint():
    return make_checkpoint()


@pytest.fixture
def opened(checkpoint):
    """Whatever world is opened, its weights are random, and so is its text."""
    about = TraceInfo("any", LAYERS, EXPERTS, TOP_K)
    with pytest.MonkeyPatch.context() as patch:
        for place in (session_module, measuring):
            patch.setattr(place, "open_checkpoint", lambda folder, device: checkpoint)
            patch.setattr(place, "HeldOut", Text)
        patch.setattr(session_module, "describe_checkpoint", lambda *_: about)
        yield


@pytest.fixture(scope="session")
def target():
    return make_target()


@pytest.fixture
def tree():
    return TreeShape(depth=4, topk=3, nodes=14)


@pytest.fixture
def decoder(checkpoint, tree):
    return Decoder(lambda slots: Engine(checkpoint, slots, 96, tree))

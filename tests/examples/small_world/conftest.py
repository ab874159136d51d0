"""A world of a few thousand weights, and a library of three files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evict_profile.table import CostTable
from examples.small_world.corpus import Tokens
from examples.small_world.recipe import RECIPES
from tests.shipped import tracked

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
    (path,) = tracked("cost_tables/intel-*/small-world-*.json")
    return CostTable.load(path)

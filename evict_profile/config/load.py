"""Models by name or file: YAML, or a Hugging Face `config.json`."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from evict_profile.config.huggingface import is_huggingface, model_mapping
from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.io import data_root, named_file
from evict_profile.records import parse, read_mapping


@cache
def same_shape() -> dict[str, str]:
    """Published models with the sizes of a model that has a file."""
    return read_mapping(data_root() / "configs" / "same_shape.yaml")


@cache
def name_suffixes() -> frozenset[str]:
    """Suffixes of a model's name that do not change its sizes."""
    listed = read_mapping(data_root() / "configs" / "name_suffixes.yaml")
    lines = [listed["trained"], *listed["stored"]]
    return frozenset(word for line in lines for word in line)


def model_named(name: str, models: Sequence[str]) -> str | None:
    """The model of a Hugging Face name: Qwen/Qwen3-30B-A3B-Instruct-2507 is
    qwen3-30b-a3b; GLM-5-Flash is not glm-5."""
    given = name.rpartition("/")[2].lower()
    known = {each.rpartition("/")[2].lower(): each for each in [*same_shape(), *models]}
    while given not in known:
        given, _, last = given.rpartition("-")
        if last not in name_suffixes() and not re.fullmatch(r"\d{4}", last):
            return None
    names = (known[given], same_shape().get(known[given]))
    return next((each for each in names if each in models), None)


def name_or_file(name: str) -> str:
    """Argument of --model for a model: its name, or a file without one here."""
    known = model_named(name, [path.stem for path in known_models()])
    return name if known else f"FILE, the YAML of {name}"


def load_model(name: str) -> ModelSpec:
    """Read a model by name, or by the path of a YAML or `config.json`.

    Raises:
        ConfigError: no such model, or one that cannot be read.
    """
    if not Path(name).expanduser().is_file():
        name = model_named(name, [path.stem for path in known_models()]) or name
    path = named_file("models", name, [*same_shape()])
    if path.suffix == ".gguf":
        raise ConfigError(
            f"{path}: a model's shape is read from YAML; in a checkout, write it: "
            f"python -m examples.llama_cpp model {path} > model.yaml"
        )
    content = read_mapping(path)
    if is_huggingface(content):
        content = model_mapping(content, path)
    return parse(ModelSpec, content, str(path))


def known_models() -> list[Path]:
    return sorted(named_file("models", "tiny").parent.glob("*.yaml"))

"""Names of models: of a published one by its path, and those that mean one shape."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from evict_profile.errors import ConfigError
from evict_profile.io import data_root
from evict_profile.records import read_mapping

ANY = re.compile(
    "(best|blob|cache|checkpoint|ckpt|config|current|data|download|epoch|file|final|"
    "folder|global|hf|home|hub|huggingface|input|last|latest|main|master|model|new|"
    "original|out|output|param|result|root|snapshot|temp|text|tmp|weight)s?"
)
"""Words of names that any model's folder may have."""
RANDOM = re.compile(
    r"(sha256[-_:])?[0-9a-f-]{7,}|tmp[a-z0-9_]{8}|tmp\.\w+|(global[-_]?)?step[-_]?\d{2,}"
)
"""Digests, steps of a training, and names that programs make for a moment. Step-3 and
step3p7 are models."""


def published_name(path: Path, stated: object = "") -> str:
    """OWNER/NAME, or NAME, of a published model.

    The path comes first, as files of the Hugging Face cache are links; `stated`, the
    config's `_name_or_path`, often names another model.

    Raises:
        ConfigError: neither names a model.
    """
    for place in (path.absolute(), path.resolve()):
        stem = re.sub(r"(^|[-_.])config$", "", place.stem)
        cached = [part for part in place.parts if part.startswith("models--")]
        for name in (stem, *cached[-1:], place.parent.name):
            if _identifies(name):
                return name.removeprefix("models--").replace("--", "/", 1)
    owner, _, name = str(stated).partition("/")
    like_published = re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(stated))
    if like_published and _identifies(owner) and _identifies(name):
        return str(stated)
    raise ConfigError(
        f"{path}: nothing in its path names the model; put it in a folder of the "
        f"model's name, such as qwen3-30b-a3b/{path.name}"
    )


def _identifies(name: str) -> bool:
    words = re.findall("[a-z]{2,}", name.lower())
    return not (RANDOM.fullmatch(name.lower()) or all(map(ANY.fullmatch, words)))


@cache
def same_shape() -> dict[str, str]:
    return read_mapping(data_root() / "configs" / "same_shape.yaml")


@cache
def name_suffixes() -> frozenset[str]:
    listed = read_mapping(data_root() / "configs" / "name_suffixes.yaml")
    lines = [listed["trained"], *listed["stored"]]
    return frozenset(word for line in lines for word in line)


def model_named(name: str, models: Sequence[str]) -> str | None:
    """The model of a Hugging Face name; suffixes that keep the sizes are left out."""
    given = name.rpartition("/")[2].lower()
    named = {full.rpartition("/")[2].lower(): full for full in [*same_shape(), *models]}
    while given not in named:
        given, _, last = given.rpartition("-")
        if last not in name_suffixes() and not re.fullmatch(r"\d{4}", last):
            return None
    names = (named[given], same_shape().get(named[given]))
    return next((model for model in names if model in models), None)


def shape_note(given: str, model: str) -> str:
    """ "GLM-4.6 has the shape of glm-4.5"; "" where the name is the model's own."""
    name = given.rpartition("/")[2]
    label = model.lower()
    own = [each for each in (*same_shape(), label) if name.lower().startswith(each)]
    is_other = max(own, key=len, default=label) != label
    return f"{name} has the shape of {model}" if is_other else ""

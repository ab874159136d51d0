"""Models by name or file: YAML, or a Hugging Face `config.json`."""

import os
from contextlib import suppress
from pathlib import Path

from evict_profile.config.drafters import check_is_target
from evict_profile.config.huggingface import is_huggingface, model_mapping
from evict_profile.config.model import ModelSpec
from evict_profile.config.names import model_named, published_name, same_shape
from evict_profile.errors import ConfigError
from evict_profile.io import named_file
from evict_profile.records import parse, read_mapping


def name_or_file(name: str) -> str:
    shipped = model_named(name, _known_names())
    return name if shipped else f"FILE, the YAML of {name}"


def load_model(name: str) -> ModelSpec:
    """Read a model by name, or by the path of a YAML, a `config.json` or its folder.

    Raises:
        ConfigError: no such model, or one that cannot be read.
    """
    given = _file(name)
    if not (given.is_file() or (os.sep in name and given.is_dir())):
        name = model_named(name, _known_names()) or name
    path = named_file("models", str(_file(name)), [*same_shape()])
    if path.suffix == ".gguf":
        raise ConfigError(
            f"{path}: a model's shape is read from YAML; in a checkout, write it: "
            f"python -m examples.llama_cpp model {path} > model.yaml"
        )
    content = read_mapping(path)
    if is_huggingface(content):
        check_is_target(content, path)
        content = model_mapping(content, path)
    return parse(ModelSpec, content, str(path))


def model_label(name: str) -> str:
    path = _file(name)
    if not path.is_file() or path.suffix not in (".json", ".yaml"):
        return name
    content = read_mapping(path)
    stated = content.get("_name_or_path")
    label = content.get("name") or published_name(path, stated)
    return str(label).rpartition("/")[2].lower()


def is_model(path: Path) -> bool:
    inside = _file(str(path))
    if inside.suffix != ".json" or not inside.is_file():
        named = not path.exists() and model_named(str(path), _known_names())
        return bool(named) or path.suffix in (".yaml", ".gguf")
    with suppress(ConfigError):
        return is_huggingface(read_mapping(inside))
    return False


def _known_names() -> list[str]:
    return [path.stem for path in known_models()]


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    return inside if (inside := path / "config.json").is_file() else path


def known_models() -> list[Path]:
    return sorted(named_file("models", "tiny").parent.glob("*.yaml"))

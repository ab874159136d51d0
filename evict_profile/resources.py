"""Where the configs, runners and cost tables lie: in the wheel, or in the checkout.

A wheel carries them in `evict_profile/data`; a checkout has them at its top level.
"""

from pathlib import Path

from evict_profile.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent
_WHEEL_DATA = _PACKAGE / "data"


def data_root() -> Path:
    """The folder that holds `configs/`, `runners/` and `cost_tables/`."""
    return _WHEEL_DATA if _WHEEL_DATA.is_dir() else _PACKAGE.parent


def named_file(kind: str, name: str) -> Path:
    """The file of a config called by name or by path.

    Args:
        kind: a folder of `configs/`: "models", "sweeps" or "gpus".
        name: "qwen3-30b-a3b", or a path to a file of one's own.

    Raises:
        ConfigError: no such file; the known names are listed.
    """
    as_path = Path(name).expanduser()
    if as_path.suffix and as_path.is_file():
        return as_path
    folder = data_root() / "configs" / kind
    known = folder / f"{name}.yaml"
    if known.is_file():
        return known
    names = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
    raise ConfigError(
        f"no file '{name}' and none of that name in configs/{kind}; "
        f"give a path, or one of: {names}"
    )

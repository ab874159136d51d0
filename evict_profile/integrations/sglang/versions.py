"""Which SGLang this code knows.

The hooks reach into names that SGLang changes without notice, so a version that was not
read and tried is refused: a server that decodes as if nothing were installed is better
than one that decodes with half a hook.
"""

from importlib import metadata

from evict_profile.errors import ConfigError

ON_CPU = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""Whose EAGLE-3 engine runs in the tests, on a CPU."""

SUPPORTED = ("0.5.16", *ON_CPU)
"""0.5.16 is for CUDA machines with torch 2.11; its EAGLE path cannot run on a CPU."""


def installed() -> str:
    """The version of SGLang in this environment.

    Raises:
        ConfigError: there is none, or it is one that this code does not know.
    """
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        raise ConfigError(
            "SGLang is not installed here; pip install 'evict-profile[sglang]', or "
            "give the Python that has it with --python"
        ) from None
    if version not in SUPPORTED:
        raise ConfigError(
            f"SGLang {version} is not supported; install one of {', '.join(SUPPORTED)}"
        )
    return version

"""Commands of earlier versions, each answered with what to type instead."""

import shlex
from collections.abc import Callable

from typer import Context

from evict_profile.errors import ConfigError


def compose(ctx: Context) -> None:
    words = shlex.join(["--list"] if "--all" in ctx.args else ctx.args)
    raise ConfigError(
        f"compose is called estimate; type: evict-profile estimate {words}".rstrip()
    )


def audit() -> None:
    raise ConfigError(
        "audit is a Python call; type: python -c 'from evict_profile.lossless import "
        'Combination, classify; print(classify(Combination("sampled", "rejection", '
        '"stop", "own")))\''
    )


ANSWERS: dict[str, Callable[..., None]] = {"compose": compose, "audit": audit}

"""The engine as a runner of sweeps (sweep.yaml); speaks runners/protocol.py."""

import sys

from evict_profile.errors import ConfigError
from runners.protocol import Message, Refusal, serve_session

try:
    from examples.small_world.engine.measuring import Session
except ModuleNotFoundError as error:
    sys.exit(
        f"{sys.executable} has no module '{error.name}'; install it there, or give "
        "--python an interpreter that has it"
    )


def begin(model: Message, options: Message) -> Session:
    """Open the target for measuring."""
    try:
        return Session(model, options)
    except ConfigError as error:
        raise Refusal("infeasible", str(error)) from error


if __name__ == "__main__":
    serve_session(begin)

"""llama.cpp as a runner of sweeps (sweep.yaml); speaks runners/protocol.py."""

import os
import sys
from typing import TYPE_CHECKING

from runners.protocol import Message, serve_session

if TYPE_CHECKING:
    from examples.llama_cpp.session import Session


def begin(model: Message, options: Message) -> "Session":
    if options["engine"]["threads"] != 1:
        # As a server's threads wait; OpenMP reads it when it is loaded.
        os.environ.pop("OMP_WAIT_POLICY", None)
    try:
        from examples.llama_cpp.session import Session
    except ModuleNotFoundError as error:
        sys.exit(
            f"{error.name} is missing in {sys.executable}; pip install "
            f"'{error.name}' there, or give another Python with --python"
        )
    return Session(model, options)


if __name__ == "__main__":
    serve_session(begin)

"""Run as `python -m runners.llama_cpp`; speaks the protocol of runners/protocol.py."""

import os
import sys
from typing import TYPE_CHECKING

from runners.protocol import Message, serve

if TYPE_CHECKING:
    from runners.llama_cpp.session import Session


class Service:
    """Holds the open session between requests."""

    session: "Session"

    def open(self, ask: Message) -> Message:
        """Load the model."""
        if ask["options"]["llama"]["threads"] > 1:
            # As a server's threads wait; OpenMP reads it when it is loaded.
            os.environ.pop("OMP_WAIT_POLICY", None)
        try:
            from runners.llama_cpp.session import Session
        except ModuleNotFoundError as error:
            sys.exit(
                f"{error.name} is missing in {sys.executable}; install "
                "evict-profile[llama] there, or give another Python with --python"
            )
        self.session = Session(ask["model"], ask["options"])
        return self.session.answer_open()

    def measure(self, ask: Message) -> Message:
        """Measure one cell."""
        return self.session.measure(ask)


if __name__ == "__main__":
    service = Service()
    serve({"open": service.open, "measure": service.measure})

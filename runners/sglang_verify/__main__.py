"""Run as `python -m runners.sglang_verify`, in SGLang's own Python.

Speaks runners/protocol.py, and of drafting:

    {"do": "clock", "batch", "steps"}
        -> {"draft_us", "fixed_us", "plain_fixed_us", "reference_us"}
"""

import sys

from runners.protocol import Message, serve

try:
    from runners.sglang_verify.session import Session
except ModuleNotFoundError as error:
    sys.exit(
        f"{error.name} is missing in {sys.executable}; install evict-profile beside "
        "SGLang, or give the Python that has both with --python"
    )


class Service:
    """Holds the open session between requests."""

    session: Session

    def open(self, ask: Message) -> Message:
        """Load the model."""
        self.session = Session(ask["model"], ask["options"])
        return self.session.answer_open()

    def measure(self, ask: Message) -> Message:
        """Measure one cell."""
        return self.session.measure(ask)

    def clock(self, ask: Message) -> Message:
        """Time drafting and the rest of a step."""
        return self.session.time_steps(ask)


if __name__ == "__main__":
    service = Service()
    names = ("open", "measure", "clock")
    serve({name: getattr(service, name) for name in names})

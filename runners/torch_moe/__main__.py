"""Run as `python -m runners.torch_moe`; speaks the protocol of runners/protocol.py."""

from runners.protocol import Message, serve
from runners.torch_moe.session import Session


class Service:
    """Holds the open session between requests."""

    session: Session

    def open(self, ask: Message) -> Message:
        self.session = Session(ask["model"], ask["options"])
        return self.session.answer_open()

    def measure(self, ask: Message) -> Message:
        return self.session.measure(ask)


if __name__ == "__main__":
    service = Service()
    serve({"open": service.open, "measure": service.measure})

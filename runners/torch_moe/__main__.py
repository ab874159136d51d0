"""Run as `python -m runners.torch_moe`; speaks the protocol of runners/protocol.py."""

from runners.protocol import serve_session
from runners.torch_moe.session import Session

if __name__ == "__main__":
    serve_session(Session)

"""The torch runner, noting the seed of every sample that it has measured.

A killed sweep leaves no trace of the round it was in, because that round is stored
when it ends. The journal keeps that trace. Started by benchmarks/kill_resume.py.
"""

import os
from pathlib import Path

from runners.protocol import Message, serve
from runners.torch_moe.__main__ import Service


class Journaled(Service):
    """Writes one line a sample to the file RUNNER_JOURNAL."""

    def measure(self, ask: Message) -> Message:
        """Measure a cell, then note its seeds."""
        answer = super().measure(ask)
        with Path(os.environ["RUNNER_JOURNAL"]).open("a") as journal:
            journal.writelines(f"{seed}\n" for seed in ask["seeds"])
        return answer


if __name__ == "__main__":
    service = Journaled()
    serve({"open": service.open, "measure": service.measure})

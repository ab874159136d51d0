"""Ranks of tensor parallelism: each is a process, and all do what the toolkit asks.

Rank 0 answers. It hands every request on before it serves it itself, because ranks wait
for each other within a forward. A request is served alike on all: what is drawn comes
from its seeds.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from runners.protocol import Message, Refusal
from runners.sglang_verify.session import Session


def begin(model: Message, options: Message) -> Any:
    """A session of the ranks that a sweep asks for, or of the one that options name."""
    if options["sglang"]["tp"] == 1 or "rank" in options:
        return Session(model, options)
    return Led(model, options)


class Led:
    """A session whose other ranks are led by this one."""

    def __init__(self, model: Message, options: Message) -> None:
        tp, gpus = options["sglang"]["tp"], torch.cuda.device_count()
        if 0 < gpus < tp:
            raise Refusal("device", f"{tp} ranks need a GPU each, and {gpus} are here")
        command = [sys.executable, "-m", "runners.sglang_verify"]
        pipe, joined = subprocess.PIPE, {**options, "port": free_port()}
        self.others = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            for _ in range(1, tp)
        ]
        try:
            for rank, other in enumerate(self.others, start=1):
                own = {**joined, "rank": rank}
                tell(other, {"do": "open", "model": model, "options": own})
            self.own = Session(model, {**joined, "rank": 0})
            self.check()
        except BaseException:
            for other in self.others:
                other.kill()
            raise

    def answer_open(self) -> Message:
        return self.own.answer_open()

    def measure(self, ask: Message) -> Message:
        return self.together(ask, self.own.measure)

    def answer_clock(self, ask: Message) -> Message:
        return self.together(ask, self.own.answer_clock)

    def together(self, ask: Message, serve: Callable[[Message], Message]) -> Message:
        for other in self.others:
            tell(other, ask)
        try:
            answer = serve(ask)
        except Refusal:
            with suppress(Refusal):
                self.check()
            raise
        self.check()
        return answer

    def check(self) -> None:
        """Wait for the others' answers.

        Raises:
            Refusal: one refused, or has ended.
        """
        for rank, answer in enumerate(list(map(answer_of, self.others)), start=1):
            if not answer.get("ok"):
                said = answer.get("message", "it ended; the log has its last words")
                raise Refusal(answer.get("kind", "failed"), f"rank {rank}: {said}")


def tell(other: "subprocess.Popen[str]", ask: Message) -> None:
    assert other.stdin
    other.stdin.write(json.dumps(ask) + "\n")
    other.stdin.flush()


def answer_of(other: "subprocess.Popen[str]") -> Message:
    """The next answer, empty of a process that ended."""
    assert other.stdout
    answer: Message = json.loads(other.stdout.readline() or "{}")
    return answer


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

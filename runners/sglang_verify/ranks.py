"""Ranks of tensor parallelism: each is a process, and all do what the toolkit asks.

Rank 0 answers. It hands every request on before it serves it itself, because ranks wait
for each other within a forward. A request is served alike on all: what is drawn comes
from its seeds. If one rank fails alone, the others wait for it without end, so rank 0
ends the process with the words of the rank that failed.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, NoReturn

import torch

from runners.protocol import Message, Refusal
from runners.sglang_verify.session import Session

GRACE_S = 20.0
"""How long the ranks that did not fail may take to answer."""


def begin(model: Message, options: Message) -> Any:
    """A session of the ranks that a sweep asks for, or of the one that options name."""
    if options["engine"]["tp"] == 1 or "rank" in options:
        return Session(model, options)
    return Led(model, options)


class Led:
    """A session whose other ranks are led by this one."""

    def __init__(self, model: Message, options: Message) -> None:
        tp, gpus = options["engine"]["tp"], torch.cuda.device_count()
        if 0 < gpus < tp:
            raise Refusal("device", f"{tp} ranks need a GPU each, and {gpus} are here")
        command = [sys.executable, *sys.orig_argv[1:]]
        pipe, joined = subprocess.PIPE, {**options, "port": free_port()}
        self.others = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            for _ in range(1, tp)
        ]
        try:
            for rank, other in enumerate(self.others, start=1):
                own = {**joined, "rank": rank}
                tell(other, {"do": "open", "model": model, "options": own})
            with self.together():
                self.own = Session(model, {**joined, "rank": 0})
        except BaseException:
            for other in self.others:
                other.kill()
            raise

    def answer_open(self) -> Message:
        return self.own.answer_open()

    def measure(self, ask: Message) -> Message:
        return self.serve(ask, self.own.measure)

    def answer_clock(self, ask: Message) -> Message:
        return self.serve(ask, self.own.answer_clock)

    def serve(self, ask: Message, own: Callable[[Message], Message]) -> Message:
        for other in self.others:
            tell(other, ask)
        with self.together() as answers:
            try:
                return own(ask)
            except Refusal as refusal:
                if wait(answers, GRACE_S).not_done:
                    end(f"rank 0: {refusal}")
                raise

    @contextmanager
    def together(self) -> Iterator[Sequence["Future[Message]"]]:
        """Serve what the others were told; leave when all have answered.

        Raises:
            Refusal: one refused, or has ended.
        """
        served = Event()
        others = enumerate(self.others, start=1)
        answers = [heard(rank, other, served) for rank, other in others]
        try:
            yield answers
        finally:
            served.set()
        for answer in answers:
            answer.result()


def heard(
    rank: int, other: "subprocess.Popen[str]", served: Event
) -> "Future[Message]":
    """The answer of a rank, once it is there; the end of all if it is a failure that
    rank 0 does not share."""
    found: Future[Message] = Future()

    def hear() -> None:
        answer = answer_of(other)
        if answer.get("ok"):
            found.set_result(answer)
            return
        said = f"rank {rank}: {answer.get('message', 'it ended; see the log above')}"
        found.set_exception(Refusal(answer.get("kind", "failed"), said))
        if not served.wait(GRACE_S):
            end(said)

    Thread(target=hear, daemon=True).start()
    return found


def end(words: str) -> NoReturn:
    """End this process, which the other ranks' end with, whatever it waits for."""
    print(words, file=sys.stderr, flush=True)
    os._exit(1)


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

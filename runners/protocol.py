"""The runner protocol: JSON lines over stdin and stdout, one answer a request.

    {"do": "open", "model": {...}, "options": {...}}
        -> {"ok": true, "fingerprint": {...}, "capture_sizes": [...], "limits": {...},
            "bandwidth_gbps": ...}
    {"do": "measure", "cell": {...}, "seeds": [1, 2, 3], "layers": null}
        -> {"ok": true, "samples": [{...}, ...]}
    {"do": "clock", "batch": 4, "steps": 24}
        -> {"ok": true, "draft_us": [0.0, ...], "fixed_us": ..., "plain_fixed_us": ...}
    {"do": "close"}

Before an answer a runner may say how far it is: {"progress": "capturing width 4"}.

A fingerprint needs engine, engine_version, device, device_kind, layers,
attention_backend, moe_backend, graph_mode, clock, tp and ep; a sample needs clock_us,
reference_us, observed_width, observed_union, union_low, union_high and at_unix
(evict_profile/cells.py says what each is).

`layers` measures only the first so many MoE layers; null measures all that are open.
A runner that times whole forwards, and not MoE layers and the rest apart, opens with
`"whole": true`; one that can time drafting, with `"clocks": true`
(evict_profile/runner.py says what a clock is).
An error is an answer too: {"ok": false, "kind": "oom", "message": ...}. A runner
lives in its own process, so an engine can have an environment of its own, and a
crash costs one cell and not the sweep. This module needs the standard library only.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

Message = dict[str, Any]

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""


class Refusal(Exception):
    """A request that cannot be served; `kind` is one word that the toolkit knows.

    Kinds: "device" (no such device, or one that cannot run this), "memory" (it would
    not fit), "oom" (it did not fit), "infeasible" (the cell cannot exist), "graph"
    (no captured graph ran), "failed" (the engine gave up this cell alone).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


_answers: list[TextIO] = []
"""Where `serve` answers."""


def tell(message: Message) -> None:
    """Send an answer, or progress before it."""
    for answers in _answers:
        answers.write(json.dumps(message) + "\n")
        answers.flush()


def serve_session(begin: Callable[[Message, Message], Any]) -> None:
    """Open a session on a model, with options; its methods `answer_open`, `measure`
    and, if it can draft, `answer_clock` answer what follows."""
    sessions: list[Any] = []

    def opened(ask: Message) -> Message:
        sessions[:] = [begin(ask["model"], ask["options"])]
        return sessions[0].answer_open()

    serve(
        {
            "open": opened,
            "measure": lambda ask: sessions[0].measure(ask),
            "clock": lambda ask: sessions[0].answer_clock(ask),
        }
    )


def serve(handlers: dict[str, Callable[[Message], Message]]) -> None:
    """Answer requests until "close" or the end of stdin.

    Whatever else prints in this process goes to stderr: a library's banner on
    stdout would otherwise break the protocol.
    """
    die_with_parent()
    _answers[:] = [os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")]
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "close":
            return
        tell(_answer(handlers, request))


def die_with_parent() -> None:
    """End with the toolkit, whatever ended it: else a request goes on for nobody."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _answer(handlers: dict[str, Callable[[Message], Message]], ask: Message) -> Message:
    try:
        return {"ok": True, **handlers[ask["do"]](ask)}
    except Refusal as refusal:
        return {"ok": False, "kind": refusal.kind, "message": str(refusal)}

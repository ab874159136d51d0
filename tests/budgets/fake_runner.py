"""A runner that answers synthetic replies under budgets: a real process, and fast.

A reply under the same request is the same to the last bit, and under another budget
another. What goes wrong is scripted by environment variables:

    BUDGETED_CRASH    the line of the journal at which the process ends unanswered
    BUDGETED_SIGNAL   "LINE=NUMBER": the signal that the toolkit gets at a line
    BUDGETED_LACKING  a field that steps do not have
    BUDGETED_ODD      a field of steps that is a word
    BUDGETED_JOURNAL  file that gets one line a request
"""

import os
from pathlib import Path
from random import Random

from runners.protocol import Message, serve

LAYERS, EXPERTS, TOP_K, TOKENS = 3, 16, 2, 4
ABOUT = {
    "model": "scripted",
    "layers": LAYERS,
    "experts": EXPERTS,
    "top_k": TOP_K,
    "engine": "scripted",
    "engine_version": "1",
    "device": "paper",
    "threads": 1,
    "weights_sha256": "0" * 64,
    "reference_us": 100.0,
}
MASS = [
    [0.5 ** (1 + (expert * step + layer) % EXPERTS) for expert in range(EXPERTS)]
    for layer, step in enumerate((1, 3, 5))
]
"""Of each layer, in an order of its own."""
KL = [0.1, 0.2, 0.8]
"""Of each layer while it alone has a budget; half of it with twice the budget."""
ASKED = "per_layer", "mode", "ranking", "exponent", "kept"
"""What names a budget."""


def journal(line: str) -> None:
    """Note what was asked, and misbehave where the script says so."""
    if "BUDGETED_JOURNAL" in os.environ:
        with Path(os.environ["BUDGETED_JOURNAL"]).open("a") as file:
            file.write(line + "\n")
    if os.environ.get("BUDGETED_CRASH") == line:
        os._exit(7)
    at, _, number = os.environ.get("BUDGETED_SIGNAL", "").rpartition("=")
    if at == line:
        os.kill(os.getppid(), int(number))


def named(ask: Message) -> str:
    """The budget that a request names, on one line."""
    return " ".join(str(ask[name]) for name in ASKED)


def routing_us(ask: Message) -> float:
    """Made up from what names the budget."""
    return round(100.0 * Random(named(ask)).random(), 3)


class Service:
    """The world of the fake runner."""

    def open_world(self, ask: Message) -> Message:
        """Take the shape of trees; answer synthetic facts."""
        told = ("depth", "topk", "nodes", "reference_us")
        options = {name: ask["options"][name] for name in told}
        options["reference_us"] = options["reference_us"] or ABOUT["reference_us"]
        facts = {**ABOUT, **options}
        return {"about": {**facts, "workloads": {"code": 30, "prose": 30}}}

    def clock(self, ask: Message) -> Message:
        """Times of whole steps."""
        journal(f"clock {ask['batch']}")
        return {"draft_us": [0.0, 60.0, 120.0], "fixed_us": 40.0, "plain_fixed_us": 9.0}

    def expert_mass(self, ask: Message) -> Message:
        """What other text would tell."""
        journal(f"mass {ask['learn_from']} of {ask['prompts']}")
        return {"mass": MASS}

    def budget_kl(self, ask: Message) -> Message:
        """How far one layer would be off."""
        journal(f"kl {ask['learn_from']} of {ask['prompts']} {named(ask)}")
        (layer,) = (i for i, b in enumerate(ask["per_layer"]) if b < EXPERTS)
        return {"kl": KL[layer] / ask["per_layer"][layer]}

    def clock_routing(self, ask: Message) -> Message:
        """What routing adds."""
        journal(f"routing {named(ask)}")
        return {"routing_us": routing_us(ask)}

    def budget(self, ask: Message) -> Message:
        """A reply of steps that commit one token and two, until it is long enough."""
        kind = "given" if ask["given"] else "decoded"
        journal(f"{ask['workload']} {ask['prompt']} {kind} {named(ask)}")
        steps, position, random = [], 0, Random(f"{ask}")
        while position < ask["tokens"]:
            committed = 1 + position % 2
            steps.append(step(position, committed, random))
            position += committed
        return {"steps": steps}


def step(position: int, committed: int, random: Random) -> Message:
    """Made up; quarters, so that float32 holds them."""
    quarters = [random.randrange(16) / 4.0 for _ in range(committed)]
    found = {
        "position": position,
        "context": 128 + position,
        "verified": 13,
        "union": 3.75,
        "committed": committed,
        "kl": quarters,
        "agrees": [quarter < 2.0 for quarter in quarters],
        "loss": [1.0 + quarter for quarter in quarters],
        "plain_loss": [1.0] * committed,
    }
    found.pop(os.environ.get("BUDGETED_LACKING", ""), None)
    if odd := os.environ.get("BUDGETED_ODD"):
        found[odd] = "word"
    return found


if __name__ == "__main__":
    service = Service()
    names = [name for name in vars(Service) if not name.startswith("_")]
    serve({name: getattr(service, name) for name in names})

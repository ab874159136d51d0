"""A runner that answers synthetic replies, plain and under budgets: a real process.

A reply under the same request is the same to the last bit, so two recordings can be
compared, and under another budget it is another. What goes wrong is scripted by
environment variables, which name lines of the journal:

    FAKE_JOURNAL  file that gets one line a request
    FAKE_CRASH    the line at which the process ends unanswered
    FAKE_SIGNAL   "LINE=NUMBER": the signal that the toolkit gets at a line
    FAKE_REFERENCE  what its reference takes, in microseconds
    FAKE_SLEEP    seconds that each traced reply takes
    FAKE_RISING   the line of a reply whose probabilities rise from parent to child
    FAKE_LACKING  a field that steps of budgets do not have
    FAKE_ODD      a field of theirs that is a word
"""

import os
import time
from pathlib import Path
from random import Random

from evict_profile.records import replace, to_mapping
from evict_profile.traces import Reply
from runners.protocol import Refusal, serve
from tests.traces.synthetic import ABOUT, Plan, make_clock, reply_steps

PATH = Path(__file__)
TOLD = ("depth", "topk", "nodes", "reference_us")
MOST_TOKENS = 500
MASS = [
    [0.5 ** (1 + (expert * step + layer) % ABOUT.experts) for expert in range(16)]
    for layer, step in enumerate((1, 3, 5))
]
"""Of each layer, in an order of its own."""
KL = [0.1, 0.2, 0.8]
"""Of each layer while it alone has a budget; half of it with twice the budget."""
ASKED = "per_layer", "mode", "ranking", "exponent", "kept"
"""What names a budget."""


def journal(line):
    """Note what was asked, and misbehave where the script says so."""
    if "FAKE_JOURNAL" in os.environ:
        with Path(os.environ["FAKE_JOURNAL"]).open("a") as file:
            file.write(line + "\n")
    if os.environ.get("FAKE_CRASH") == line:
        os._exit(7)
    at, _, number = os.environ.get("FAKE_SIGNAL", "").rpartition("=")
    if at == line:
        os.kill(os.getppid(), int(number))


def named(ask):
    """The budget that a request names, on one line."""
    return " ".join(str(ask[name]) for name in ASKED)


def routing_us(ask):
    """Made up from what names the budget."""
    return round(100.0 * Random(named(ask)).random(), 3)


class Service:
    """The world of the fake runner."""

    def open_world(self, ask):
        options = {name: ask["options"][name] for name in TOLD}
        if ask["options"]["tokens"] > MOST_TOKENS:
            raise Refusal("world", f"--tokens: {MOST_TOKENS} at most")
        own_us = float(os.environ.get("FAKE_REFERENCE", "100"))
        options["reference_us"] = options["reference_us"] or own_us
        self.about = replace(ABOUT, **options)
        available = {"code": 30, "prose": 30}
        return {"about": {**to_mapping(self.about), "workloads": available}}

    def clock(self, ask):
        journal(f"clock {ask['batch']}")
        return to_mapping(make_clock(self.about, ask["batch"]))

    def trace(self, ask):
        key = Reply(ask["workload"], ask["prompt"], ask["seed"], ask["temperature"])
        journal(str(key))
        time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
        steps = reply_steps(Plan(tokens=ask["tokens"], about=self.about), key)
        if os.environ.get("FAKE_RISING") == str(key):
            steps[-1]["path_prob"][-1] = 1.0
        return {"steps": steps}

    def expert_mass(self, ask):
        journal(f"mass {ask['learn_from']} of {ask['prompts']}")
        return {"mass": MASS}

    def budget_kl(self, ask):
        """How far one layer would be off."""
        journal(f"kl {ask['learn_from']} of {ask['prompts']} {named(ask)}")
        budgets = ask["per_layer"]
        (layer,) = (i for i, b in enumerate(budgets) if b < ABOUT.experts)
        return {"kl": KL[layer] / budgets[layer]}

    def clock_routing(self, ask):
        journal(f"routing {named(ask)}")
        return {"routing_us": routing_us(ask)}

    def budget(self, ask):
        """A reply of steps that commit one token and two, until it is long enough."""
        kind = "given" if ask["given"] else "decoded"
        journal(f"{ask['workload']} {ask['prompt']} {kind} {named(ask)}")
        steps, position, random = [], 0, Random(f"{ask}")
        while position < ask["tokens"]:
            committed = 1 + position % 2
            steps.append(budgeted_step(position, committed, random))
            position += committed
        return {"steps": steps}


def budgeted_step(position, committed, random):
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
    found.pop(os.environ.get("FAKE_LACKING", ""), None)
    if odd := os.environ.get("FAKE_ODD"):
        found[odd] = "word"
    return found


if __name__ == "__main__":
    service = Service()
    names = [name for name in vars(Service) if not name.startswith("_")]
    serve({name: getattr(service, name) for name in names})

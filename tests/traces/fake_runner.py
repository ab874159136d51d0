"""A runner that answers synthetic replies, plain and under budgets: a real process.

A reply under the same request is the same to the last bit, so two recordings can be
compared. What goes wrong is scripted by
environment variables, which name lines of the journal:

    FAKE_JOURNAL  file that gets one line a request
    FAKE_CRASH    the line at which the process ends unanswered
    FAKE_SIGNAL   "LINE=NUMBER": the signal that the toolkit gets at a line
    FAKE_REFERENCE  what its reference takes, in microseconds
    FAKE_SLEEP    seconds that each traced reply takes
    FAKE_RISING   the line of a reply whose probabilities rise from parent to child
"""

import os
import time
from pathlib import Path

from evict_profile.records import replace, to_mapping
from evict_profile.traces import Reply
from runners.protocol import Refusal, serve
from tests.traces.synthetic import ABOUT, Plan, make_clock, reply_steps

PATH = Path(__file__)
TOLD = ("depth", "topk", "nodes", "reference_us")
MOST_TOKENS = 500


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

    def budget(self, ask):
        """A reply of steps that commit one token and two, until it is long enough."""
        kind = "given" if ask["given"] else "decoded"
        named = " ".join(str(ask[name]) for name in ("budget", "ranking", "exponent"))
        journal(f"{ask['workload']} {ask['prompt']} {kind} {named}")
        steps, position = [], 0
        while position < ask["tokens"]:
            steps.append(
                {
                    "position": position,
                    "context": 128 + position,
                    "verified": 13,
                    "union": 3.75,
                    "committed": 1 + position % 2,
                    "routing_us": 20.0,
                    "kl": 0.25 * ask["prompt"],
                    "agrees": 1,
                }
            )
            position += steps[-1]["committed"]
        return {"steps": steps}


if __name__ == "__main__":
    service = Service()
    names = [name for name in vars(Service) if not name.startswith("_")]
    serve({name: getattr(service, name) for name in names})

"""A runner that answers synthetic traces: a real process, exact and fast.

The same reply is the same to the last bit, so two recordings can be compared. What
goes wrong is scripted by environment variables:

    TRACED_CRASH    a prompt: the process ends without an answer
    TRACED_UNCLOCKED  a batch size: the process ends while it is timed
    TRACED_WRONG    a prompt: its replies rise from parent to child
    TRACED_LACKING  a field that steps do not have
    TRACED_DEVICE   name of the device
    TRACED_SLEEP    seconds that each reply takes
    TRACED_JOURNAL  file that gets one line a reply or clock
"""

import os
import time
from pathlib import Path

from evict_profile.records import replace, to_mapping
from evict_profile.traces.record import ReplyKey
from runners.protocol import Message, Refusal, serve
from tests.traces.synthetic import ABOUT, Plan, make_clock, reply_steps

TOLD = ("depth", "topk", "nodes", "reference_us")
MOST_TOKENS = 500


def scripted(name: str, ask: Message) -> bool:
    """Whether the prompt asked for is the one that the variable names."""
    return os.environ.get(name) == str(ask["prompt"])


def journal(line: str) -> None:
    if "TRACED_JOURNAL" in os.environ:
        with Path(os.environ["TRACED_JOURNAL"]).open("a") as file:
            file.write(line + "\n")


class Service:
    def open_world(self, ask: Message) -> Message:
        options = {name: ask["options"][name] for name in TOLD}
        if ask["options"]["tokens"] > MOST_TOKENS:
            raise Refusal("world", f"--tokens: {MOST_TOKENS} at most")
        device = os.environ.get("TRACED_DEVICE", ABOUT.device)
        self.about = replace(ABOUT, device=device, **options)
        available = {"code": 30, "prose": 30}
        return {"about": {**to_mapping(self.about), "workloads": available}}

    def trace(self, ask: Message) -> Message:
        if scripted("TRACED_CRASH", ask):
            os._exit(7)
        time.sleep(float(os.environ.get("TRACED_SLEEP", "0")))
        key = ReplyKey(ask["workload"], ask["prompt"], ask["seed"], ask["temperature"])
        journal(str(key))
        steps = reply_steps(Plan(tokens=ask["tokens"], about=self.about), key)
        for step in steps:
            step.pop(os.environ.get("TRACED_LACKING"), None)
        if scripted("TRACED_WRONG", ask):
            steps[-1]["path_prob"][-1] = 1.0
        return {"steps": steps}

    def clock(self, ask: Message) -> Message:
        if os.environ.get("TRACED_UNCLOCKED") == str(ask["batch"]):
            os._exit(7)
        journal(f"clock {ask['batch']}")
        return to_mapping(make_clock(self.about, ask["batch"]))


if __name__ == "__main__":
    service = Service()
    serve(
        {
            "open_world": service.open_world,
            "trace": service.trace,
            "clock": service.clock,
        }
    )

"""A runner of two ranks without an engine, in which the environment names a fault.

FAULT is RANK:REQUEST:HOW; the other rank then waits for it, as in a collective.
"""

import os
import sys
import time

from runners.protocol import Refusal, serve_session
from runners.sglang_verify import ranks

FAULTY, REQUEST, HOW = os.environ["FAULT"].split(":")


class Session:
    def __init__(self, model, options):
        self.rank = str(options["rank"])
        self.run("open")

    def run(self, request):
        if request != REQUEST:
            return
        if HOW == "both refuse" or (HOW == "refuses" and self.rank == FAULTY):
            raise Refusal("oom", f"no memory for {request}")
        if self.rank == FAULTY:
            sys.exit("it broke")
        time.sleep(600)

    def answer_open(self):
        return {}

    def measure(self, ask):
        self.run("measure")
        return {"samples": []}


if __name__ == "__main__":
    ranks.Session, ranks.GRACE_S = Session, 0.5
    serve_session(ranks.begin)

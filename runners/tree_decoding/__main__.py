"""Run as `python -m runners.tree_decoding`; speaks runners/protocol.py, and of whole
replies and steps:

    {"do": "open_world", "world": FOLDER, "options": {"depth", "topk", "nodes",
        "prompt_tokens", "tokens", "batches", "clock_steps", "reference_us"}}
        -> {"about": {...}}
    {"do": "trace", "workload", "prompt", "prompts", "seed", "temperature", "tokens"}
        -> {"steps": [{...}, ...]}
    {"do": "budget", "workload", "prompt", "prompts", "tokens", "given", "budget",
        "ranking", "exponent"} -> {"steps": [{...}, ...]}
    {"do": "clock", "batch", "steps"} -> {"draft_us", "fixed_us", "plain_fixed_us"}
"""

import sys

from runners.protocol import Message, serve

try:
    from runners.tree_decoding.budget_session import BudgetSession
    from runners.tree_decoding.measuring import Session
except ModuleNotFoundError as error:
    sys.exit(
        f"{sys.executable} has no module '{error.name}'; install it there, in a "
        "checkout: pip install '.[world]', or give --python an interpreter that has it"
    )


class Service:
    """Holds what is open between requests."""

    measuring: Session
    decoding: BudgetSession

    def open(self, ask: Message) -> Message:
        self.measuring = Session(ask["model"], ask["options"])
        return self.measuring.answer_open()

    def open_world(self, ask: Message) -> Message:
        """Open target and drafter for decoding."""
        self.decoding = BudgetSession(ask["world"], ask["options"])
        return self.decoding.answer_open()


if __name__ == "__main__":
    service = Service()
    serve(
        {
            "open": service.open,
            "measure": lambda ask: service.measuring.measure(ask),
            "open_world": service.open_world,
            "trace": lambda ask: service.decoding.trace(ask),
            "clock": lambda ask: service.decoding.clock(ask),
            "budget": lambda ask: service.decoding.record(ask),
        }
    )

"""Run as `python -m runners.tree_decoding`; speaks runners/protocol.py, and of whole
replies and steps:

    {"do": "open_world", "world": FOLDER, "options": {"depth", "fan", "nodes",
        "prompt_tokens", "tokens", "batches", "clock_steps", "reference_us"}}
        -> {"about": {...}}
    {"do": "trace", "workload", "prompt", "prompts", "seed", "temperature", "tokens"}
        -> {"steps": [{...}, ...]}
    {"do": "budget", "workload", "prompt", "prompts", "tokens", "given", "per_layer",
        "mode", "ranking", "exponent", "kept"} -> {"steps": [{...}, ...]}
    {"do": "expert_mass", "workloads", "prompts", "learn_from", "tokens"} -> {"mass"}
    {"do": "budget_kl", as both} -> {"kl"}
    {"do": "clock_routing", "per_layer", "mode", "ranking", "exponent", "kept"}
        -> {"routing_us"}
    {"do": "clock", "batch", "steps"} -> {"draft_us", "fixed_us", "plain_fixed_us"}
"""

import sys

from runners.protocol import Message, serve

try:
    from runners.tree_decoding.budget_session import BudgetSession
    from runners.tree_decoding.measuring import MeasureSession
    from runners.tree_decoding.session import TraceSession
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is missing; pip install 'evict-profile[world]'")


class Service:
    """Holds what is open between requests."""

    measuring: MeasureSession
    tracing: TraceSession
    budgets: BudgetSession

    def open(self, ask: Message) -> Message:
        """Open the target for a sweep."""
        self.measuring = MeasureSession(ask["model"], ask["options"])
        return self.measuring.answer_open()

    def measure(self, ask: Message) -> Message:
        """Measure one cell."""
        return self.measuring.measure(ask)

    def open_world(self, ask: Message) -> Message:
        """Open a world for decoding."""
        self.tracing = TraceSession(ask["world"], ask["options"])
        self.budgets = BudgetSession(self.tracing)
        return self.tracing.answer_open()

    def trace(self, ask: Message) -> Message:
        """Record one reply."""
        return self.tracing.trace(ask)

    def clock(self, ask: Message) -> Message:
        """Time whole steps."""
        return self.tracing.clock(ask)

    def budget(self, ask: Message) -> Message:
        """Record one reply under an expert budget."""
        return self.budgets.record(ask)

    def expert_mass(self, ask: Message) -> Message:
        """Learn from other text what each expert gets."""
        return self.budgets.expert_mass(ask)

    def budget_kl(self, ask: Message) -> Message:
        """Learn from other text how far a budget puts the output off."""
        return self.budgets.budget_kl(ask)

    def clock_routing(self, ask: Message) -> Message:
        """Time routing within a budget."""
        return self.budgets.clock_routing(ask)


if __name__ == "__main__":
    service = Service()
    names = (
        "open",
        "measure",
        "open_world",
        "trace",
        "clock",
        "budget",
        "expert_mass",
        "budget_kl",
        "clock_routing",
    )
    serve({name: getattr(service, name) for name in names})

"""Traces: what a drafter proposed on real text, and what the target made of it."""

from evict_profile.traces.load import load_traces
from evict_profile.traces.trace import About, Nodes, Reply, Trace

__all__ = ["About", "Nodes", "Reply", "Trace", "load_traces"]

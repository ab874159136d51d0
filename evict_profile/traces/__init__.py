"""Traces: what a drafter proposed on real text, and what the target made of it."""

from evict_profile.traces.load import load_traces
from evict_profile.traces.trace import Nodes, Reply, Trace, TraceInfo

__all__ = ["Nodes", "Reply", "Trace", "TraceInfo", "load_traces"]

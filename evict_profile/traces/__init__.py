"""Traces: what a drafter proposed on real text, and what the target made of it."""

from evict_profile.traces.load import load_traces
from evict_profile.traces.trace import About, Reply, StageTimes, Step, Trace

__all__ = ["About", "Reply", "StageTimes", "Step", "Trace", "load_traces"]

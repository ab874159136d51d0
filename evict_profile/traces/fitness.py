"""What a trace must be for a table: of its model, of one temperature, and of trees."""

from evict_profile.config import ModelSpec
from evict_profile.errors import TraceError
from evict_profile.traces.trace import About, Trace


def require_same_model(about: About, model: ModelSpec, noun: str = "trace") -> None:
    """Refuse a recording whose routes cannot be those of the model.

    One that does not say how many experts there were is believed.

    Raises:
        TraceError: layers, experts or top-k differ.
    """
    own = (about.layers, about.experts, about.top_k)
    priced = (model.moe_layers, model.moe.num_experts, model.moe.top_k)
    if about.experts and own != priced:
        raise TraceError(
            f"the {noun} is of {_shape(own)} ({about.model}), and the table prices "
            f"{_shape(priced)} ({model.name}); give the table of the model that was "
            "recorded"
        )


def require_one_temperature(trace: Trace) -> None:
    """Refuse to learn from temperatures together: acceptance differs between them.

    Raises:
        TraceError: there are several; they are named.
    """
    if len(trace.temperatures) > 1:
        named = ", ".join(f"{each:g}" for each in trace.temperatures)
        raise TraceError(
            f"the trace holds temperatures {named}, and what is right for one is wrong "
            "for another; choose one with --temperature"
        )


def require_trees(trace: Trace) -> None:
    """Refuse a trace that drafted nothing.

    Raises:
        TraceError: every tree is a root alone.
    """
    if not any(len(step.parent) for step in trace.steps):
        raise TraceError(
            "the trace holds no draft node, only plain steps; record while drafting"
        )


def _shape(numbers: tuple[int, int, int]) -> str:
    return "{} MoE layers of {} experts, top-{}".format(*numbers)

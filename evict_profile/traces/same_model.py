"""A trace is of one model, and a table prices one: they had better be the same."""

from evict_profile.config import ModelSpec
from evict_profile.errors import TraceError
from evict_profile.traces.trace import Trace


def require_same_model(trace: Trace, model: ModelSpec) -> None:
    """Refuse a trace whose routes cannot be those of the model.

    A trace that does not say how many experts there were is believed.

    Raises:
        TraceError: layers, experts or top-k differ.
    """
    about = trace.about
    own = (about.layers, about.experts, about.top_k)
    priced = (model.moe_layers, model.moe.num_experts, model.moe.top_k)
    if about.experts and own != priced:
        raise TraceError(
            f"the trace is of {_shape(own)} ({about.model}), and the table prices "
            f"{_shape(priced)} ({model.name}); give the table of the model that was "
            "traced"
        )


def _shape(numbers: tuple[int, int, int]) -> str:
    return "{} MoE layers of {} experts, top-{}".format(*numbers)

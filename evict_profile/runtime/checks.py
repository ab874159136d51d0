"""What a caller gives, as the runtime needs it, or one sentence that says what to mend.

A NaN that enters a running mean never leaves it, and a misspelt word that means the
opposite is worse than an error: so both are refused where they enter.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from evict_profile.errors import PlanError


def one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuse a word that is none of those allowed.

    Raises:
        PlanError: naming them.
    """
    if value not in allowed:
        raise PlanError(f"{name} {value!r} is not one of {', '.join(allowed)}")


def number(name: str, value: Any, least: float = 0.0) -> float:
    """A finite number of at least `least`.

    Raises:
        PlanError: anything else.
    """
    try:
        found = float(value)
    except (TypeError, ValueError) as error:
        raise PlanError(f"{name} {value!r} is no number") from error
    if not least <= found < math.inf:
        raise PlanError(f"{name} {found:g} must be finite and at least {least:g}")
    return found


def sizes(name: str, values: Iterable[Any] | None) -> tuple[int, ...] | None:
    """Whole numbers above zero that increase; None stays None.

    Raises:
        PlanError: anything else, and an empty sequence.
    """
    if values is None:
        return None
    try:
        found = [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise PlanError(f"{name} {values!r} must hold whole numbers") from error
    rising = all(low < high for low, high in zip([0.0, *found], found, strict=False))
    if not (found and rising and all(value.is_integer() for value in found)):
        raise PlanError(f"{name} {found} must hold increasing whole sizes above zero")
    return tuple(int(value) for value in found)


def depths(depth: Any, path_prob: Tensor) -> None:
    """Refuse depths that are no whole numbers, one for each node, where the nodes are.

    Raises:
        PlanError: another kind, shape or device.
    """
    if not isinstance(depth, Tensor):
        raise PlanError(f"depth is a {type(depth).__name__}; give a tensor")
    if depth.shape != path_prob.shape or depth.device != path_prob.device:
        raise PlanError(
            f"depth is {list(depth.shape)} on {depth.device}, and path_prob "
            f"{list(path_prob.shape)} on {path_prob.device}; give one depth a node, "
            "beside it"
        )
    if depth.is_floating_point() or depth.is_complex():
        raise PlanError(f"depth is {depth.dtype}; give whole numbers, 1 under the root")

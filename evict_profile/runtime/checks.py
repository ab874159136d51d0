"""What a caller gives, as the runtime needs it, or one sentence that says what to fix.

A NaN that enters a running mean never leaves it, so it is refused where it enters.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from evict_profile.errors import PlanError


def one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuse a word that is none of those allowed."""
    if value not in allowed:
        raise PlanError(f"{name} {value!r} is not one of {', '.join(allowed)}")


def number(name: str, value: Any, least: float = 0.0) -> float:
    """A finite number of at least `least`."""
    try:
        found = float(value)
    except (TypeError, ValueError) as error:
        raise PlanError(f"{name} {value!r} is no number") from error
    if not least <= found < math.inf:
        raise PlanError(f"{name} {found:g} must be finite and at least {least:g}")
    return found


def whole(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`."""
    found = number(name, value, least)
    if not found.is_integer():
        raise PlanError(f"{name} {found:g} must be a whole number")
    return int(found)


def sizes(name: str, values: Iterable[Any] | None) -> tuple[int, ...] | None:
    """Whole numbers above zero that increase; None stays None."""
    if values is None:
        return None
    try:
        found = tuple(whole(name, value, 1) for value in values)
    except TypeError as error:
        raise PlanError(f"{name} {values!r} must hold whole numbers") from error
    if not found or any(b <= a for a, b in pairwise(found)):
        raise PlanError(f"{name} {found} must hold increasing whole sizes above zero")
    return found


def host_ints(name: str, values: Tensor | None, shape: tuple[int, ...]) -> Any:
    """Whole numbers of that shape on the host, one a node; None stays None."""
    if values is None:
        return None
    if not isinstance(values, Tensor):
        raise PlanError(f"{name} is a {type(values).__name__}; give a tensor")
    found = values.cpu().numpy()
    if found.shape != shape:
        raise PlanError(
            f"{name} is {list(found.shape)}, and path_prob {list(shape)}; give one "
            f"{name} a node"
        )
    if found.dtype.kind not in "iu":
        raise PlanError(
            f"{name} is {found.dtype}; give whole numbers: of a node under the root "
            "its depth is 1, and its parent -1"
        )
    return found

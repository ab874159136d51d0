"""What a caller gives, as the runtime needs it, or one sentence that says what to mend.

A NaN that enters a running mean never leaves it, and a misspelt word that means the
opposite is worse than an error: so both are refused where they enter.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.lossless.rules import Combination, classify


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


def whole(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`.

    Raises:
        PlanError: anything else.
    """
    found = number(name, value, least)
    if not found.is_integer():
        raise PlanError(f"{name} {found:g} must be a whole number")
    return int(found)


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


def lossless(combination: Combination) -> None:
    """Refuse a way to cut trees that changes what the model says.

    Raises:
        PlanError: saying why, and what is lossless instead.
    """
    verdict = classify(combination)
    if not verdict.lossless:
        raise PlanError(
            f"{combination} would change what the model says. {verdict.why} Lossless "
            "is this with target-only acceptance, or a fixed width; of rules that read "
            f"scores, {verdict.instead}"
        )


def of_trees(path_prob: Tensor, depth: Tensor | None, parent: Tensor | None) -> None:
    """Refuse depths or parents that are not those of these nodes; see `of_nodes`."""
    if depth is not None:
        of_nodes("depth", depth, path_prob)
    if parent is not None:
        of_nodes("parent", parent, path_prob)


def of_nodes(name: str, values: Any, path_prob: Tensor) -> None:
    """Refuse what is not one whole number for each node, where the nodes are.

    Raises:
        PlanError: another kind, shape or device.
    """
    if not isinstance(values, Tensor):
        raise PlanError(f"{name} is a {type(values).__name__}; give a tensor")
    if values.shape != path_prob.shape or values.device != path_prob.device:
        raise PlanError(
            f"{name} is {list(values.shape)} on {values.device}, and path_prob "
            f"{list(path_prob.shape)} on {path_prob.device}; give one {name} a node, "
            "beside it"
        )
    if values.is_floating_point() or values.is_complex():
        raise PlanError(
            f"{name} is {values.dtype}; give whole numbers: of a node under the root "
            "its depth is 1, and its parent -1"
        )

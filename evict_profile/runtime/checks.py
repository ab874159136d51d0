"""Checks of arguments; each refusal is one sentence that says what to fix."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import ConfigError
from evict_profile.runtime.scan_numpy import LARGEST_PROBABILITY
from evict_profile.stats import Floats


def one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} {value!r} is not one of {', '.join(allowed)}")


def number(name: str, value: Any, least: float = 0.0) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} {value!r} is no number") from error
    if not least <= found < math.inf:
        raise ConfigError(f"{name} {found:g} must be finite and at least {least:g}")
    return found


def whole(name: str, value: Any, least: int) -> int:
    found = number(name, value, least)
    if not found.is_integer():
        raise ConfigError(f"{name} {found:g} must be a whole number")
    return int(found)


def sizes(name: str, values: Iterable[Any] | None) -> tuple[int, ...] | None:
    """Whole numbers above zero that increase; None stays None."""
    if values is None:
        return None
    try:
        found = tuple(whole(name, value, 1) for value in values)
    except TypeError as error:
        raise ConfigError(f"{name} {values!r} must hold whole numbers") from error
    if not found or any(b <= a for a, b in pairwise(found)):
        raise ConfigError(f"{name} {found} must hold increasing whole sizes above zero")
    return found


def host_ints(name: str, values: Tensor | None, shape: tuple[int, ...]) -> Any:
    """Whole numbers of that shape on the host, one a node; None stays None."""
    if values is None:
        return None
    if not isinstance(values, Tensor):
        raise ConfigError(f"{name} is a {type(values).__name__}; give a tensor")
    found = values.cpu().numpy()
    if found.shape != shape:
        raise ConfigError(
            f"{name} is {list(found.shape)}, and path_prob {list(shape)}; give one "
            f"{name} a node"
        )
    if found.dtype.kind not in "iu":
        raise ConfigError(
            f"{name} is {found.dtype}; give whole numbers: of a node under the root "
            "its depth is 1, and its parent -1"
        )
    return found


def host_floats(path_prob: Tensor) -> Floats:
    """float64 [B, N]; a tensor on a device is copied to the host."""
    try:
        found: NDArray[Any] = path_prob.numpy()
    except AttributeError as error:
        raise ConfigError(
            f"path_prob is a {type(path_prob).__name__}; give a tensor"
        ) from error
    except (RuntimeError, TypeError):  # gradients, bfloat16, or a device
        found = path_prob.detach().cpu().double().numpy()
    if found.ndim != 2 or not len(found):
        raise ConfigError(
            f"path_prob has shape {list(found.shape)}; give [requests, nodes] with "
            "at least one request"
        )
    if found.dtype.kind != "f":
        raise ConfigError(f"path_prob is {found.dtype}; give floating point numbers")
    return np.ascontiguousarray(found, np.float64)


def host_costs(cost_us: Floats | Tensor) -> Floats:
    """float64 [T + 1] on the host."""
    try:
        found: Floats = np.asarray(cost_us, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"cost_us holds no numbers on the host: {error}") from error
    if found.ndim != 1:
        raise ConfigError(
            f"cost_us has {found.ndim} dimensions; give one, [tokens + 1]"
        )
    return found


def require_probabilities(path_prob: NDArray[Any]) -> None:
    if path_prob.size:
        # The index of the largest, which NaN is, costs a third of the largest.
        largest = path_prob.item(path_prob.argmax())
        smallest = path_prob.item(path_prob.argmin())
        if not (largest <= LARGEST_PROBABILITY and smallest >= 0.0):
            raise no_probability("path_prob")


def no_probability(name: str) -> ConfigError:
    return ConfigError(
        f"{name} holds a value that is NaN or outside [0, 1]; give probabilities, and "
        "0 where a request has fewer nodes"
    )

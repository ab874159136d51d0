"""Numbers that JSON cannot say."""

import math
from typing import Any


def finite(value: Any) -> Any:
    """The same with null for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

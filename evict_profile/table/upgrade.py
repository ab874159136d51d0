"""Documents of schema 3 as those of schema 4, which has the field's words for its keys.

A document that was read keeps the hash of its file, whatever its keys are called here.
"""

from collections.abc import Mapping
from typing import Any

OLD_SCHEMA = "evict-cost-table/3"

NAMES = {
    "apart": "differ",
    "ladder": "capture_sizes",
    "lone_union": "single_token_union",
    "lone_us": "single_token_us",
    "lone_width": "single_token_width",
    "most_apart": "ratio_upper",
    "openings": "sessions",
    "stand_ins": "substituted_versions",
    "unpriced": "not_included",
}
UNREAD = {"adaptive", "odd_references", "plan", "precision", "us_per_unit_interval"}
"""Keys that nothing was ever computed from."""

VALUES = {"torch.mm, woken experts": "torch.mm, activated experts"}


def upgraded(document: Mapping[str, Any], schema: str) -> dict[str, Any]:
    """The document of a table of schema 3, its schema replaced by another."""
    content: dict[str, Any] = _renamed(document)
    if isinstance(made := content.get("provenance"), dict):
        content["provenance"] = {"origin": "measured", **made}
    return {**content, "schema": schema}


def _renamed(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {
            NAMES.get(key, key): _renamed(value)
            for key, value in content.items()
            if key not in UNREAD
        }
    if isinstance(content, list):
        return [_renamed(value) for value in content]
    return VALUES.get(content, content) if isinstance(content, str) else content

"""What was measured, on what: the facts that make two measurements comparable.

Latency is a property of shape, device, engine, kernels and clock together. Change
one of them and old numbers say nothing of new ones: between successive releases of
one engine on one GPU, a third to a half of all costs moved by more than 10 %.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evict_profile.config.model import ModelSpec

Facts = dict[str, Any]


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the compact, key-sorted JSON of a mapping, hex."""
    text = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def fingerprint(runner_facts: Facts, model: ModelSpec) -> Facts:
    """The runner's facts with the model's name, dtype and the digest of its shape."""
    shape = {k: v for k, v in asdict(model).items() if k not in {"name", "source"}}
    return {
        **runner_facts,
        "model": model.name,
        "dtype": model.dtype,
        "model_sha256": digest(shape)[:16],
    }


def differences(mine: Facts, theirs: Facts) -> list[str]:
    """One phrase for each fact that differs: "layers: 2 here, 4 there"."""
    keys = sorted(mine.keys() | theirs.keys())
    return [
        f"{key}: {mine.get(key, 'absent')} here, {theirs.get(key, 'absent')} there"
        for key in keys
        if mine.get(key) != theirs.get(key)
    ]

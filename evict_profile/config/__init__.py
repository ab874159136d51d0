"""Models and sweeps: YAML in, frozen dataclasses out."""

from evict_profile.config.load import load_model
from evict_profile.config.model import AttentionSpec, ModelSpec, MoeSpec
from evict_profile.config.sweep import (
    GridSpec,
    StopSpec,
    SweepSpec,
    load_sweep,
)

__all__ = [
    "AttentionSpec",
    "GridSpec",
    "ModelSpec",
    "MoeSpec",
    "StopSpec",
    "SweepSpec",
    "load_model",
    "load_sweep",
]

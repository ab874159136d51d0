"""What was measured, on what: the facts that make two measurements comparable.

Latency is a property of shape, device, engine, kernels and clock together. Change
one of them and old numbers say nothing of new ones: between successive releases of
one engine on one GPU, a third to a half of all costs moved by more than 10 %.
"""

from evict_profile.config.model import ModelSpec
from evict_profile.records import Facts, digest, to_mapping


def fingerprint(runner_facts: Facts, model: ModelSpec) -> Facts:
    """The runner's facts with the model's name, dtype and the digest of its shape."""
    shape = {k: v for k, v in to_mapping(model).items() if k not in {"name", "source"}}
    return {
        **runner_facts,
        "model": model.name,
        "dtype": model.dtype,
        "model_sha256": digest(shape)[:16],
    }

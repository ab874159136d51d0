"""Which truncation rules keep the target's output distribution."""

from evict_profile.lossless.rules import Classification, Combination, classify

__all__ = ["Classification", "Combination", "classify"]

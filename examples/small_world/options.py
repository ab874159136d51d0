"""What a sweep of the small world must name."""

from evict_profile.config.sweep import EngineOptions


class Options(EngineOptions, frozen=True):
    """`world` is the folder of the weights."""

    world: str

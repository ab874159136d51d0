"""What a sweep may ask of the runner "roofline"."""

from evict_profile.config.sweep import EngineOptions


class Options(EngineOptions, frozen=True):
    """`gpu` is a data sheet of configs/gpus, or the path of one."""

    gpu: str = "h200-sxm"

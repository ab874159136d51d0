"""What a sweep may ask of llama.cpp: what a llama-server is started with."""

from typing import Literal

from evict_profile.config.sweep import EngineOptions
from evict_profile.records import Amount, Count

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]


class Options(EngineOptions, frozen=True):
    """A sweep's `engine:`. How llama.cpp decodes is in the fingerprint.

    Attributes:
        model: GGUF file; "" is the file that the shape was read from.
        library: libllama.so; "" is $EVICT_PROFILE_LIBLLAMA, else xllamacpp's.
        text: file whose tokens are decoded; "" is a module of Python's library.
        threads: of llama.cpp; with more than one, wall time on an idle machine.
        overrides: "PATTERN=CPU": matching tensors stay in CPU memory.
        repack: repack weights for this CPU's kernels.
    """

    model: str = ""
    library: str = ""
    text: str = ""
    threads: Count = 1
    gpu_layers: Amount = 0
    overrides: tuple[str, ...] = ()
    cache_k: CacheType = "f16"
    cache_v: CacheType = "f16"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    repack: bool = True

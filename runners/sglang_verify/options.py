"""What a sweep may ask of SGLang."""

from evict_profile.config.sweep import EngineOptions
from evict_profile.records import Count


class Options(EngineOptions, frozen=True):
    """Options of the runner "sglang_verify".

    Attributes:
        model: folder of the target; "" is the folder of the model's config.json, or a
            config.json written from its shape.
        draft: folder of the EAGLE-3 head; "" writes a usual config.json.
        steps, topk: levels drafted, and children of each node; 1 drafts chains.
    """

    model: str = ""
    draft: str = ""
    steps: Count = 5
    topk: Count = 8
    attention_backend: str = ""
    tp: Count = 1

    def fault(self, widest: int) -> str:
        """A chain is as wide as its levels and the root."""
        chain = self.steps + 1
        if self.topk > 1 or widest == chain:
            return ""
        return (
            f"engine.topk 1 drafts chains of {chain} tokens with the root, and the "
            f"largest width is {widest}; end grid.width with {chain}, or change "
            "engine.steps"
        )

"""Configs of heads that only draft, which no target of a sweep can be."""

import re
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError

HEADS = re.compile(
    r"(?i)eagle|medusa|dflash|dspark|speculator|draft|assistant|mtp|NextN\b"
)
"""In the names that SpecForge, vLLM, SGLang, MLX and transformers give to heads."""

KEYS = (
    "draft_vocab_size",
    "eagle_config",
    "dflash_config",
    "medusa_num_heads",
    "speculators_config",
    "speculators_model_type",
)


def check_is_target(content: dict[str, Any], path: Path) -> None:
    """Raise a ConfigError if a `config.json` is of a drafting head."""
    architectures = content.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    words = [str(word) for word in (*names, content.get("model_type"))]
    stated = [key for key in KEYS if content.get(key) is not None]
    if signs := [*filter(HEADS.search, words), *stated]:
        raise ConfigError(
            f"{path}: is of a head that drafts ({signs[0]}), not of a model that "
            "verifies; give the config.json of the model that it drafts for"
        )

"""Drafted and accepted tokens in vLLM's responses."""

import json
from collections.abc import Iterator, Mapping
from operator import gt
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from evict_profile.errors import ConfigError
from evict_profile.records import parse
from evict_profile.stats import Ints

MAX_DRAFTS, MAX_STEPS = 1024, 10**7
"""The most drafts of a step, and steps of a request, that metrics may state."""
Drafts = Annotated[int, Meta(ge=0, le=MAX_DRAFTS)]


def read_steps(path: Path) -> list[tuple[Ints, Ints]]:
    """Drafted and accepted tokens of each step, by request that states them."""
    return [
        steps
        for found in _metrics(_documents(path))
        if (steps := parse(RequestMetrics, found, str(path), extra_keys=True).steps)
    ]


def _documents(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        try:
            return json.loads(text)
        except ValueError:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; give the responses as saved"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: is neither JSON nor a JSON a line; give the responses as saved"
        ) from error


def _metrics(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, dict) and "acceptance_histogram" in content:
        yield content
    elif isinstance(content, dict | list):
        for inner in content.values() if isinstance(content, dict) else content:
            yield from _metrics(inner)


class RequestMetrics(Struct, frozen=True):
    """vLLM's metrics of a request, by its own names."""

    acceptance_histogram: list[Annotated[int, Meta(ge=0, le=MAX_STEPS)]]
    num_draft_tokens: int | None = None
    per_step_accepted: list[Drafts] | None = None
    per_step_drafted: list[Drafts] | None = None

    def __post_init__(self) -> None:
        accepted, drafted = self.per_step_accepted or [], self.per_step_drafted or []
        if len(accepted) != len(drafted) or any(map(gt, accepted, drafted)):
            raise ValueError(
                "per_step_accepted and per_step_drafted need one count a step, and no "
                "step accepts more than it drafted; save the responses again"
            )

    @property
    def steps(self) -> tuple[Ints, Ints] | None:
        """Drafted and accepted tokens of each step; None where they are not stated."""
        drafted, accepted = self.per_step_drafted, self.per_step_accepted
        if drafted and accepted:
            return (np.array(drafted), np.array(accepted)) if any(drafted) else None
        counts = self.acceptance_histogram
        drafts, steps = len(counts) - 1, sum(counts)
        if not steps or drafts < 1 or self.num_draft_tokens != drafts * steps:
            return None
        return np.full(steps, drafts), np.repeat(np.arange(drafts + 1), counts)

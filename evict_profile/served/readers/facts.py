"""What a file states of a run, the K typed beside it, and how both become a run.

A K that contradicts the file is refused with both values. Tools state the time of a
token: a step takes that time, multiplied by the tokens that it commits. So a step that
drafts needs an accepted length.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.records import Facts, parse, replace, to_mapping
from evict_profile.served.run import Run


class FileRuns(Struct, frozen=True):
    """The runs of a file, why others are left out by source, and remarks."""

    runs: list[Run]
    left_out: dict[str, str] = {}
    notes: Sequence[str] = ()


def drafts_of(path: Path, stated: int | None, given: int | None) -> int:
    """K as the file states it, or else as it was typed, as FILE=K."""
    known = given if stated is None else stated
    if known is None:
        raise ConfigError(
            f"{path}: does not state K; give K as {path}=K, 0 for plain decoding"
        )
    if given not in (None, known):
        raise ConfigError(
            f"{path}: states K = {known}, and K = {given} was given; give the "
            "file alone, or the file of the other server"
        )
    return known


def lengths_of(shares: Iterable[float]) -> dict[int, float]:
    """Accepted lengths by k, from the share of steps that accept each position."""
    return dict(enumerate((1.0 + np.cumsum([*shares])).tolist(), 1))


def timed(
    source: str, token_us: float | None, step_us: float | None = None, **facts: Any
) -> Run:
    """A checked run of a time per token, or per step.

    Args:
        token_us: between two tokens of one request.
        facts: of `Run`; `levels`, `topk` and `width` are a chain's if left out.
    """
    drafts = facts["drafts"]
    shape = {"levels": drafts, "topk": 1, "width": drafts + 1}
    run = Run(source=source, **{**shape, **facts})
    if step_us is None and token_us is not None:
        if run.accept_length is None:
            raise ConfigError(
                f"{source}: with drafts a time per token is a step only with the "
                "accepted length, and none is stated; log or save it, or give the step "
                "in a CSV with columns batch, K, step ms"
            )
        step_us = token_us * run.accept_length
    stated = to_mapping(replace(run, step_us=step_us))
    return parse(Run, stated, source).checked()


def documents(text: str, path: Path) -> list[Facts]:
    """JSON objects one after another, or in lists."""
    found, place, text = list[Facts](), 0, text.strip()
    try:
        while place < len(text):
            content, place = json.JSONDecoder().raw_decode(text, place)
            found += content if isinstance(content, list) else [content]
            while text[place : place + 1].isspace():
                place += 1
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: is not whole JSON ({error}); save the file again"
        ) from error
    if not all(isinstance(each, dict) for each in found):
        raise ConfigError(f"{path}: holds JSON that is no result; give another file")
    return found

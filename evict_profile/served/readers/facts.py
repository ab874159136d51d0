"""What a file states of a run, what was typed beside it, and how both become a run.

A file's word beats a typed one, and a contradiction is refused with both values. Tools
state the time of a token: a step takes that time, multiplied by the tokens that it
commits. So a step that drafts needs an accepted length.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.records import Facts, parse, replace, to_mapping
from evict_profile.served.run import Deployment, Run


class Given(NamedTuple):
    """What was typed beside a file: K as FILE=K, and facts of the server."""

    drafts: int | None = None
    deployment: Deployment = Deployment()


class Reading(Struct, frozen=True):
    """The runs of a file, why others are left out by source, and remarks."""

    runs: list[Run]
    left_out: dict[str, str] = {}
    notes: Sequence[str] = ()


def drafts_of(path: Path, stated: int | None, given: Given) -> int:
    """K as the file states it, or else as it was typed."""
    known = given.drafts if stated is None else stated
    if known is None:
        raise ConfigError(
            f"{path}: does not state K; give K as {path}=K, 0 for plain decoding"
        )
    if given.drafts not in (None, known):
        raise ConfigError(
            f"{path}: states K = {known}, and K = {given.drafts} was given; give the "
            "file alone, or the file of the other server"
        )
    return known


def deployment_of(path: Path, stated: Deployment, given: Given) -> Deployment:
    """The facts of a server: a file's, and those that were typed where it has none."""
    own, typed = stated.stated, given.deployment.stated
    for name in own.keys() & typed.keys():
        if not _agree(own[name], typed[name]):
            raise ConfigError(
                f"{path}: states {name} {own[name]}, and {typed[name]} was given; "
                f"leave {name} out, or give another file"
            )
    facts = {n: getattr(stated, n) for n in Deployment.__struct_fields__ if n in own}
    base = {n: getattr(given.deployment, n) for n in Deployment.__struct_fields__}
    flags = {**given.deployment.flags, **stated.flags}
    return Deployment(**{**base, **facts, "flags": flags})


def _agree(stated: object, given: object) -> bool:
    """Whether two facts may be of one thing: "H200" and "NVIDIA H200"."""
    if not (isinstance(stated, str) and isinstance(given, str)):
        return stated == given
    one, other = (
        re.sub(r"[^a-z0-9]", "", each.rpartition("/")[2].lower())
        for each in (stated, given)
    )
    return one in other or other in one


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

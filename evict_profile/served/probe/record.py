"""The file of a probe: a line of JSON for each start of a server, then its waves."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.io import make_folder, regular, write_text
from evict_profile.records import (
    Amount,
    Count,
    NotNegative,
    Positive,
    parse,
    to_mapping,
)
from evict_profile.served.probe.server import ServerInfo
from evict_profile.served.probe.wave import MIN_TOKENS, REPLY_TOKENS, Rates
from evict_profile.served.run import check_one_deployment
from evict_profile.stats import Floats
from evict_profile.table import BatchActivation

DRAFTED_TOLERANCE = 0.1
"""Relative tolerance of drafted tokens to K: the last steps of a reply draft less."""


class Probed(Struct, frozen=True):
    """A probed server. `text` is "chat" or "raw", and the file of prompts if given."""

    server: ServerInfo
    text: str
    interleaved: tuple[str, ...] = ("batch",)


class Wave(Struct, frozen=True):
    """One wave: `batch` requests that were decoded together.

    Attributes:
        accepted, drafted: tokens per step and request; None if the server does not
            state it.
        others: requests of others that ran when the wave began.
        took_s: seconds of the wave, with prefill.
    """

    round: Amount
    batch: Count
    tokens_per_s: NotNegative
    accepted: Positive | None
    context: NotNegative
    others: Amount
    at_unix: NotNegative
    took_s: NotNegative
    drafted: NotNegative | None = None


class RoutedExperts(Struct, frozen=True):
    """Distinct experts that committed tokens of replies activate.

    Attributes:
        tokens: with known routes.
        layers: by MoE layer, the mean over windows of n consecutive tokens of a reply,
            n = 0..width.
        half_width: of the mean over layers, 95 % over replies, by n.
        batches: mean over layers when requests decode together.
    """

    replies: Count
    tokens: Count
    top_k: Count
    layers: tuple[tuple[NotNegative, ...], ...]
    half_width: tuple[NotNegative, ...]
    batches: tuple[BatchActivation, ...]

    @property
    def union(self) -> Floats:
        """Mean over layers of one request's U(n), [width + 1]."""
        union: Floats = np.mean(self.layers, axis=0)
        return union


Line = Probed | Wave | RoutedExperts


def step_fault(server: ServerInfo, wave: Rates | Wave) -> str:
    """Why a wave shows no step, and the remedy; "" if it shows one."""
    if not wave.tokens_per_s:
        return (
            f"replies of {REPLY_TOKENS} tokens decode side by side for fewer than "
            f"{MIN_TOKENS}, so some wait or end early; probe a smaller --batch"
        )
    if server.drafts and wave.accepted is None:
        return (
            "no accepted length is stated; start the server with metrics, and vLLM "
            "without --disable-log-stats"
        )
    return ""


def drafted_of(server: ServerInfo, wave: Rates | Wave) -> float:
    """Tokens drafted a step: the server's K where it does not count them."""
    return server.drafts if wave.drafted is None else wave.drafted


def near(drafted: float, other: float) -> bool:
    return abs(drafted - other) <= DRAFTED_TOLERANCE * max(other, 1.0)


def read_probe(path: Path) -> list[tuple[Probed, list[Wave]]]:
    """Each server and its waves; routed experts are left aside."""
    found = list[tuple[Probed, list[Wave]]]()
    waves = list[Wave]()
    for line in read_lines(path):
        if isinstance(line, Probed):
            known = [own for each, own in found if each == line]
            waves = known[0] if known else []
            if not known:
                found.append((line, waves))
        elif isinstance(line, Wave):
            waves.append(line)
    if not found:
        raise ConfigError(
            f"{path}: names no server; give a file of evict-profile probe, or a "
            f"benchmark's result as {path}=K"
        )
    return found


def read_lines(path: Path) -> Iterator[Line]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        source = f"{path}, line {number}"
        try:
            content = dict(json.loads(line))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{source}: is no line of a probe; remove it, or give a benchmark's "
                f"result as {path}=K"
            ) from error
        if "server" in content:
            yield parse(Probed, content, source)
        elif "layers" in content:
            yield parse(RoutedExperts, content, source)
        else:
            yield parse(Wave, content, source)


def resume(path: Path, server: Probed) -> list[Wave]:
    """Append a server's line, and return its waves; a half-written last line is
    dropped.
    """
    known = list[tuple[Probed, list[Wave]]]()
    if path.exists():
        whole, end, torn = _text(path).rpartition("\n")
        if torn:
            write_text(whole + end, path)
        known = read_probe(path) if whole else []
    before = [(f"a server of {path}", each.server.deployment) for each, _ in known]
    check_one_deployment([*before, (server.server.url, server.server.deployment)])
    append(path, server)
    return next((own for each, own in known if each == server), [])


def _text(path: Path) -> str:
    try:
        return regular(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; check the path") from error


def append(path: Path, line: Line) -> None:
    make_folder(path.parent)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(to_mapping(line)) + "\n")
        file.flush()
        os.fsync(file.fileno())

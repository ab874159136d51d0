"""The file of a probe: a line of JSON about a server, then a line a wave.

A server that was started again with another K adds its own line, and waves below it.
"""

import json
import os
from pathlib import Path

from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.io import make_folder, write_text
from evict_profile.probe.server import About, check_one_deployment
from evict_profile.probe.wave import FEWEST, TOKENS, Wave
from evict_profile.records import (
    Amount,
    Count,
    NotNegative,
    Positive,
    parse,
    to_mapping,
)

OFF = 0.1
"""Of K, what drafted tokens may differ: steps at the end of a reply draft less."""


class Probed(Struct, frozen=True):
    """A server, and whether its prompts were "chat" or "raw"."""

    server: About
    text: str
    interleaved: tuple[str, ...] = ("batch",)


class Block(Struct, frozen=True):
    """One wave of B requests.

    Attributes:
        accepted: tokens a step and request; None where the server does not state it.
        others: requests of others that ran when it began.
        took_s: with prefill.
        drafted: tokens a step and request; None where the server does not state it.
    """

    round: Amount
    batch: Count
    tokens_per_s: NotNegative
    accepted: Positive | None
    context: NotNegative
    others: Amount
    at_unix: NotNegative
    took_s: NotNegative
    drafted: Positive | None = None


def odd(about: About, wave: Wave | Block) -> str:
    """Why a wave shows no step of its server, and what to do; "" where it does."""
    if not wave.tokens_per_s:
        return (
            f"replies of {TOKENS} tokens decode side by side for fewer than {FEWEST}, "
            "so some wait or end early; probe a smaller --batch"
        )
    if about.drafts and wave.accepted is None:
        return (
            "no accepted length is stated; start the server with metrics, and vLLM "
            "without --disable-log-stats"
        )
    if abs((wave.drafted or about.drafts) - about.drafts) > OFF * about.drafts:
        return (
            f"{wave.drafted:.2f} tokens are drafted a step, and K = {about.drafts} is "
            "stated; start the server with one K for all batches, and with drafts that "
            "are made at every step (no ngram or suffix)"
        )
    return ""


def read_probe(path: Path) -> list[tuple[Probed, list[Block]]]:
    """Each server of a file with its waves, also of those that came in turns."""
    found = list[tuple[Probed, list[Block]]]()
    blocks = list[Block]()
    for number, line in enumerate(_text(path).splitlines(), 1):
        source = f"{path}, line {number}"
        try:
            content = dict(json.loads(line))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{source}: is no line of a probe; remove it, or give --table for runs "
                "of another kind"
            ) from error
        if "server" in content:
            probed = parse(Probed, content, source)
            blocks = next((own for each, own in found if each == probed), [])
            if not blocks:
                found.append((probed, blocks))
        else:
            blocks.append(parse(Block, content, source))
    if not found:
        raise ConfigError(
            f"{path}: names no server; give a file of evict-profile probe"
        )
    return found


def begin(path: Path, server: Probed) -> list[Block]:
    """The waves of a server that are in a file; its line is added to it.

    A last line that a killed probe left half written is dropped.
    """
    known = list[tuple[Probed, list[Block]]]()
    if path.exists():
        whole, end, torn = _text(path).rpartition("\n")
        if torn:
            write_text(whole + end, path)
        known = read_probe(path) if whole else []
    check_one_deployment([*(each.server for each, _ in known), server.server])
    add(path, server)
    return next((own for each, own in known if each == server), [])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {error}; check the path, and give --table for "
            "FILE=K"
        ) from error


def add(path: Path, line: Probed | Block) -> None:
    """Append a line, and flush it to the disk."""
    make_folder(path.parent)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(to_mapping(line)) + "\n")
        file.flush()
        os.fsync(file.fileno())

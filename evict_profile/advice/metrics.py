"""Accepted tokens as servers state them: now, in responses, or in a file of `probe`."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from operator import gt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from msgspec import Meta, Struct

from evict_profile.errors import ConfigError
from evict_profile.records import parse
from evict_profile.stats import Estimate, Ints, student

if TYPE_CHECKING:
    from evict_profile.served.probe.record import Wave
    from evict_profile.served.probe.server import Server, ServerInfo

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


def is_probe(path: Path) -> bool:
    """Whether the first line names a probed server."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().startswith('{"server"')


def read_lengths(path: Path) -> dict[int, Estimate]:
    """Accepted length by K, mean over the requests of one server's waves."""
    from evict_profile.served.probe.record import fault_of, read_probe
    from evict_profile.served.probe.server import check_one_deployment

    probed = [(p, waves) for p, waves in read_probe(path) if p.server.drafts]
    check_one_deployment([each.server for each, _ in probed])
    kinds = sorted({f"{p.text} prompts, topk {p.server.topk}" for p, _ in probed})
    if len(kinds) > 1 or any(each.server.topk > 1 for each, _ in probed):
        raise ConfigError(
            f"{path}: has drafts of {' and '.join(kinds)}; give a file of one kind of "
            "prompts, and of chains (topk 1)"
        )
    found: dict[int, list[Wave]] = {}
    for each, waves in probed:
        good = (wave for wave in waves if not fault_of(each.server, wave))
        found.setdefault(each.server.drafts, []).extend(good)
    lengths = {drafts: _mean(waves) for drafts, waves in found.items() if waves}
    if not lengths:
        raise ConfigError(
            f"{path}: has no accepted length of a server that drafts; probe one with "
            "K = 3, or give a length as --accept 3:2.64"
        )
    return lengths


def _mean(waves: "Sequence[Wave]") -> Estimate:
    """The mean by requests, with the 95 % interval of the waves' mean if known."""
    accepted = [wave.accepted or 1.0 for wave in waves]
    mean = float(np.average(accepted, weights=[wave.batch for wave in waves]))
    if len(waves) < 2:
        return Estimate(mean, mean, mean)
    error = float(np.std(accepted, ddof=1)) / len(waves) ** 0.5
    half_width = student(len(waves) - 1) * error
    return Estimate(mean, mean - half_width, mean + half_width)


def read_server(url: str) -> dict[int, float]:
    """Accepted length by K since a server's start: vLLM's of each K up to its own."""
    from evict_profile.served.probe.record import near
    from evict_profile.served.probe.server import ACCEPTED, DRAFTED, DRAFTS, Server

    if urlsplit(url).username is not None:
        raise ConfigError(
            "--accept is repeated in the printed commands: give no password in its URL"
        )
    server = Server(url.removesuffix("/metrics"), os.environ.get("OPENAI_API_KEY", ""))
    info, known, (*_, stated) = asyncio.run(_facts(server))
    drafts, steps = info.drafts, known.get(DRAFTS, 0.0)
    one_k = drafts and info.topk == 1 and not info.adaptive
    if one_k and steps and near(known.get(DRAFTED, 0.0) / steps, drafts):
        counts = [known.get(f"{ACCEPTED}_per_pos[{k}]", 0.0) for k in range(drafts)]
        return dict(enumerate((1.0 + np.cumsum(counts) / steps).tolist(), 1))
    states = stated.get("internal_states") or ()
    means = [a for each in states if (a := each.get("avg_spec_accept_length"))]
    if one_k and means:
        return {drafts: float(np.mean(means))}
    raise ConfigError(
        f"{server.url}: states no accepted length of chains of one K; send it requests "
        "first, or give a length as --accept 3:2.64"
    )


async def _facts(server: "Server") -> "tuple[ServerInfo, dict[str, float], Any]":
    return await server.info(None, None), await server.metrics(), await server.engine()


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

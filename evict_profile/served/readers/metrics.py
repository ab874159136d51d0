"""Accepted tokens as servers count them: in /metrics, live or saved, and in responses.

Counters are sums since the server's start, so they state what steps accepted, and no
step's time: the batch changed while they were summed.
"""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from operator import gt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from msgspec import Meta, Struct

from evict_profile.errors import ConfigError
from evict_profile.records import parse
from evict_profile.served.probe.server import (
    ACCEPTED,
    ACTIVE,
    DRAFTED,
    DRAFTS,
    RUNNING,
    Server,
    metrics_of,
)
from evict_profile.served.readers import facts
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.run import Deployment, Load, Run
from evict_profile.stats import Ints

if TYPE_CHECKING:
    from evict_profile.served.probe.server import ServerInfo

SIGN = re.compile(
    r"^(vllm|sglang):\w+(?:\{[^}]*?model_name=\"([^\"]+)\")?", re.MULTILINE
)
WAITING = ("num_requests_waiting", "num_queue_reqs")
USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage")
LENGTH = "spec_accept_length"

MAX_DRAFTS, MAX_STEPS = 1024, 10**7
"""The most drafts of a step, and steps of a request, that metrics may state."""
Drafts = Annotated[int, Meta(ge=0, le=MAX_DRAFTS)]


def read(path: Path, text: str, given: int | None) -> FileRuns:
    """A saved /metrics: one run without a step."""
    signs, known = SIGN.findall(text), metrics_of(text)
    engine = signs[0][0]
    model = next((name for _, name in signs if name), "")
    shares = _shares(known)
    stated = len(shares) or (0 if engine == "vllm" else None)
    if ACTIVE in known:
        stated = max(int(known[ACTIVE]) - 1, 0)
    drafts = facts.drafts_of(path, stated, given)
    lengths, length = facts.lengths_of(shares), known.get(LENGTH, 0.0)
    if drafts and not lengths and length >= 1.0:
        lengths = {drafts: length}
    deployment = Deployment(engine=engine, model=model)
    return FileRuns([_counted(f"{path}, run 1", known, drafts, lengths, deployment)])


def read_server(url: str) -> list[Run]:
    """What a running server has counted since its start."""
    if urlsplit(url).username is not None:
        raise ConfigError(
            "--accept is repeated in the printed commands: give no password in its URL"
        )
    server = Server(url.removesuffix("/metrics"), os.environ.get("OPENAI_API_KEY", ""))
    info, known, (*_, stated) = asyncio.run(_facts(server))
    k, lengths = info.drafts, facts.lengths_of(_shares(known))
    ranks = stated.get("internal_states") or ()
    means = [mean for each in ranks if (mean := each.get("avg_spec_accept_length"))]
    if means and not lengths:
        lengths = {k: float(np.mean(means))}
    if not (k and k in lengths and info.topk == 1 and not info.adaptive):
        raise ConfigError(
            f"{server.url}: states no accepted length of chains of one K; send it "
            "requests first, or give a length as --accept 3:2.64"
        )
    own = Deployment(model=info.model, engine=info.engine, version=info.version)
    return [_counted(server.url, known, k, lengths, own)]


async def _facts(server: Server) -> "tuple[ServerInfo, dict[str, float], Any]":
    return await server.info(None, None), await server.metrics(), await server.engine()


def _shares(known: Mapping[str, float]) -> list[float]:
    """Of vLLM's steps, the share that accepts each position; [] before the first."""
    drafts = sum(name.startswith(f"{ACCEPTED}_per_pos[") for name in known)
    counts = [known.get(f"{ACCEPTED}_per_pos[{k}]", 0.0) for k in range(drafts)]
    steps = known.get(DRAFTS, 0.0)
    return [count / steps for count in counts] if steps else []


def _counted(
    source: str,
    known: Mapping[str, float],
    drafts: int,
    lengths: dict[int, float],
    deployment: Deployment,
) -> Run:
    running, waiting, usage = (
        next((known[name] for name in names if name in known), None)
        for names in (RUNNING, WAITING, USAGE)
    )
    steps = known.get(DRAFTS) or None
    load = Load(
        waiting=None if waiting is None else int(waiting),
        kv_usage=usage,
        at_once=running or None,
        drafted=known.get(DRAFTED, 0.0) / steps if steps else None,
        steps=steps,
    )
    return facts.timed(
        source,
        None,
        batch=max(int(running or 0), 1),
        drafts=drafts,
        accept_lengths=lengths,
        deployment=deployment,
        load=load,
    )


def read_responses(path: Path, text: str, given: int | None) -> FileRuns:
    """Each response that states what its steps drafted and accepted.

    A step with fewer than K drafts is no sample of K.
    """
    runs, deployment = list[Run](), Deployment(engine="vllm")
    for number, found in enumerate(_metrics(facts.documents(text, path)), 1):
        steps = parse(RequestMetrics, found, str(path), extra_keys=True).steps
        if not steps:
            continue
        drafted, accepted = steps
        ways = range(1, int(drafted.max()) + 1)
        kept = {k: 1.0 + np.minimum(accepted[drafted >= k], k).mean() for k in ways}
        runs.append(
            facts.timed(
                f"{path}, response {number}",
                None,
                batch=1,
                drafts=len(ways),
                accept_lengths={k: float(length) for k, length in kept.items()},
                deployment=deployment,
                load=Load(steps=float(len(drafted))),
            )
        )
    if not runs:
        raise ConfigError(
            f"{path}: no metrics.speculative_decoding in it state what each step "
            "drafted; serve with a draft model and --per-request-spec-decode-metrics "
            "detailed, and save the responses"
        )
    return FileRuns(runs)


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

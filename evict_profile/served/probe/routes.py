"""Learns from a server's replies how many experts committed tokens activate.

SGLang and vLLM return the experts of each token with --enable-return-routed-experts.
Rows after the prompt are of committed tokens, which a step verifies; rejected drafts
are in no reply. SGLang keeps the experts of a tree's nodes where they were verified,
not where accepted ones are moved to, so that rows of a reply are of rejected nodes too.
"""

import asyncio
import base64
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evict_profile.deadline import Deadline, interruptible
from evict_profile.errors import ConfigError, Interrupted
from evict_profile.progress import ProgressBar
from evict_profile.records import Facts
from evict_profile.served.probe.loop import ProbeConfig, prompts_of
from evict_profile.served.probe.record import Probed, RoutedExperts, append, resume
from evict_profile.served.probe.server import Server
from evict_profile.served.probe.wave import RequestForm
from evict_profile.stats import Floats, Ints, student
from evict_profile.table import BatchActivation
from evict_profile.unions import union_by_tokens, union_by_window

REPLIES, WIDTH, DRAWS = 300, 32, 400
SHOWING_K = 4_000
"""Tokens from whose experts their number a layer is read."""


async def learn_routes(
    server: Server, path: Path, config: ProbeConfig, bar: ProgressBar
) -> RoutedExperts:
    """Ask for replies until there are enough or the minutes are over, and append."""
    model, (engine, *_) = await server.model(config.model), await server.engine()
    info = await server.info(config.model, config.drafts)
    if info.topk > 1:
        raise ConfigError(
            f"{server.url}: returns experts of rejected drafts, since it drafts trees "
            f"(topk {info.topk}); start it with topk 1, or without speculation"
        )
    form, replies = RequestForm(engine, model, config.raw), list[Ints]()
    together = max(2, *config.batches)  # An interval over replies needs two.
    until = Deadline(time.monotonic() + 60.0 * config.minutes)
    with interruptible(until) as deadline:
        while not replies or (len(replies) < REPLIES and not deadline.reached()):
            prompts = prompts_of(config.texts, len(replies), together)
            asked = (_routes(server, form, prompt) for prompt in prompts)
            replies += await asyncio.gather(*asked)
            bar.show("routes", len(replies), max(REPLIES - len(replies), 0))
    found = activated_experts(replies, config.batches)
    resume(path, Probed(info, config.workload))
    append(path, found)
    if deadline.interrupted:
        raise Interrupted(f"interrupted; {path} keeps {len(replies)} replies")
    return found


async def _routes(server: Server, form: RequestForm, prompt: str) -> Ints:
    """Experts of a reply's committed tokens, [tokens, values]."""
    asked = form.fields(prompt) | {"return_routed_experts": True}
    with server.answering():
        reply = await server.http.post(form.path, json=asked)
        content = reply.raise_for_status().json()
        usage = content.get("usage") or {}
        begin = usage.get("prompt_tokens", 0)
        ran = max(begin + usage.get("completion_tokens", 0) - 1, 0)
        rows = _decoded(content, ran)
    if rows is None:
        raise ConfigError(
            f"{server.url}: returns no routed experts; start SGLang or vLLM with "
            "--enable-return-routed-experts"
        )
    if len(rows) != ran or ran - begin < WIDTH:
        raise ConfigError(
            f"{server.url}: {len(rows)} tokens have routes, of {ran} that ran, and a "
            f"reply needs {WIDTH}; give the server a longer context"
        )
    return rows[begin:]


def _decoded(content: Facts, tokens: int) -> Ints | None:
    """SGLang sends int32 values, vLLM a NumPy file; [tokens, layers * k] here."""
    if text := (content.get("sglext") or {}).get("routed_experts"):
        flat = np.frombuffer(base64.b64decode(text), np.int32).astype(np.int64)
        whole = tokens > 0 and flat.size % tokens == 0
        return flat.reshape(tokens, -1) if whole else flat.reshape(-1, 1)
    if text := content["choices"][0].get("routed_experts"):
        array: Any = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
        return np.asarray(array, np.int64).reshape(len(array), -1)
    return None


def activated_experts(
    replies: Sequence[Ints], batches: Sequence[int], seed: int = 0
) -> RoutedExperts:
    """The curves of replies, each int [tokens, layers * k]."""
    top_k = _top_k(np.concatenate(replies)[:SHOWING_K])
    routes = [rows.reshape(len(rows), -1, top_k) for rows in replies]
    # Layers without experts are zeros.
    layers = np.any([each.any(axis=(0, 2)) for each in routes], axis=0)
    routes = [each[:, layers] for each in routes]
    union = np.array([union_by_window(each, WIDTH) for each in routes])
    spread = union.mean(axis=1).std(axis=0, ddof=1) / len(routes) ** 0.5
    rng, groups = np.random.default_rng(seed), [b for b in batches if b > 1]
    return RoutedExperts(
        replies=len(routes),
        tokens=sum(map(len, routes)),
        top_k=top_k,
        layers=tuple(_rounded(each) for each in union.mean(axis=0)),
        half_width=tuple((student(len(routes) - 1) * spread).round(3).tolist()),
        batches=tuple(
            BatchActivation(batch, _rounded(_of_batch(routes, batch, rng)))
            for batch in sorted(groups)
        ),
    )


def _top_k(rows: Ints) -> int:
    """The largest k for which neighbours of k values are distinct, zeros apart."""
    for k in range(rows.shape[1], 1, -1):
        if rows.shape[1] % k == 0:
            groups = np.sort(rows.reshape(-1, k), axis=1)
            distinct = (np.diff(groups, axis=1) > 0).all(axis=1)
            if (distinct | (groups[:, -1] == 0)).all():
                return k
    return 1


def _of_batch(routes: Sequence[Ints], batch: int, rng: np.random.Generator) -> Floats:
    """Mean over groups of replies: their first tokens, then their second ones."""
    unions = []
    experts = 1 + max(int(each.max()) for each in routes)
    for _ in range(DRAWS):
        chosen = rng.choice(len(routes), batch, replace=False)
        starts = [rng.integers(len(routes[each]) - WIDTH + 1) for each in chosen]
        both = zip(chosen, starts, strict=True)
        windows = np.stack([routes[r][s : s + WIDTH] for r, s in both], axis=1)
        unions.append(union_by_tokens(np.concatenate(windows), experts))
    union: Floats = np.mean(unions, axis=0)
    return union


def _rounded(union: Floats) -> tuple[float, ...]:
    """Windows of another length begin elsewhere, so that a mean may fall a little."""
    return tuple(np.maximum.accumulate(union).round(3).tolist())

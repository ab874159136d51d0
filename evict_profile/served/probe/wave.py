"""Decodes one wave of B requests together, and derives the rates of its steps.

Only the time counts in which all decode, from the last first token to the first last
token, without prefill and queueing. With R tokens per second in all, a step of B
requests takes B * accepted / R.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

import httpx
import numpy as np

from evict_profile.served.probe.server import ACCEPTED, ACTIVE, DRAFTED, DRAFTS, Server

REPLY_TOKENS = 128
MIN_TOKENS = 8

OWN_FIELDS = {"cache_prompt": False, "return_spec_tokens_details": True}
"""Fields of llama-server and of SGLang; TensorRT-LLM refuses what it does not know."""


@dataclass(frozen=True)
class RequestForm:
    """How an engine is asked: for a chat, or with `raw` to complete a text."""

    engine: str
    model: str
    raw: bool

    @property
    def path(self) -> str:
        return f"/v1/{'' if self.raw else 'chat/'}completions"

    def fields(self, prompt: str) -> dict[str, Any]:
        chat = {"messages": [{"role": "user", "content": prompt}]}
        return {
            **({"prompt": prompt} if self.raw else chat),
            "model": self.model, "max_tokens": REPLY_TOKENS, "temperature": 0.0,
            "ignore_eos": True, "skip_special_tokens": False,
            **({} if self.engine == "trtllm" else OWN_FIELDS),
        }  # fmt: skip


class Rates(NamedTuple):
    """The rates of a wave.

    Attributes:
        tokens_per_s: of all requests; 0 if they hardly decode together.
        accepted, drafted: tokens per step and request; None if not stated.
        context: mean context length in tokens.
    """

    tokens_per_s: float
    accepted: float | None
    drafted: float | None
    context: float


class StreamedReply:
    """The arrival times of a reply's tokens, and the server's counts of its steps."""

    def __init__(self) -> None:
        self.at_s, self.tokens = list[float](), list[float]()
        self.prompt = self.steps = self.drafted = 0
        self.per_step = 0.0

    def add(self, message: dict[str, Any], at_s: float) -> None:
        usage, timings = message.get("usage") or {}, message.get("timings") or {}
        self.prompt = usage.get("prompt_tokens", self.prompt)
        counted = (message.get("sglext") or {}).get("spec_tokens_details") or {}
        counted = counted[0] if isinstance(counted, list) else counted
        self.steps = counted.get("spec_verify_ct", self.steps)
        if "draft_n_accepted" in timings:
            self.steps = timings["predicted_n"] - 1 - timings["draft_n_accepted"]
            self.drafted = timings["draft_n"]
        choices, last = message.get("choices"), self.tokens[-1] if self.tokens else 0
        # A token may have no text: a special one, or half a character.
        count = usage.get("completion_tokens", last + any(map(_text, choices or ())))
        for choice in choices or ():
            self.per_step = choice.get("avg_decoded_tokens_per_iter") or self.per_step
        if choices and count > last:
            self.at_s.append(at_s)
            self.tokens.append(count)
        elif not choices and last == len(self.tokens):
            # No message counted its own: the tokens are shared out among them.
            self.tokens = np.linspace(1, count, len(self.at_s)).tolist()

    @property
    def decode_steps(self) -> float:
        """Steps after the first token; 0 if the server does not count them.

        TensorRT-LLM states the tokens of a step, and counts prefill as one.
        """
        return self.tokens[-1] / self.per_step - 1 if self.per_step else self.steps


def _text(choice: dict[str, Any]) -> str:
    said = choice | (choice.get("delta") or {})
    names = ("text", "content", "reasoning", "reasoning_content")
    return "".join(said.get(name) or "" for name in names)


async def decode(server: Server, form: RequestForm, prompts: Sequence[str]) -> Rates:
    before = await server.metrics()
    asked = (_reply(server, form, prompt) for prompt in prompts)
    with server.answering():
        replies = await asyncio.gather(*asked)
    context = float(np.mean([reply.prompt + REPLY_TOKENS / 2 for reply in replies]))
    counted = _counted(replies, before, await server.metrics())
    return Rates(_rate(replies), *counted, context)


def _rate(replies: Sequence[StreamedReply]) -> float:
    """Tokens per second while all decode; 0 if they hardly do."""
    begin = max(reply.at_s[0] for reply in replies)
    end = min(reply.at_s[-1] for reply in replies)
    ends = [np.interp((begin, end), reply.at_s, reply.tokens) for reply in replies]
    decoded = np.diff(ends)[:, 0]
    if end <= begin or decoded.min() < MIN_TOKENS:
        return 0.0
    return float(decoded.sum()) / (end - begin)


def _counted(
    replies: Sequence[StreamedReply], before: dict[str, float], after: dict[str, float]
) -> tuple[float | None, float | None]:
    """Tokens accepted and drafted, by counts in the replies or by /metrics."""
    tokens = sum(reply.tokens[-1] - 1 for reply in replies)
    if all(reply.decode_steps > 0.0 for reply in replies):
        steps = float(sum(reply.decode_steps for reply in replies))
        drafted = float(sum(reply.drafted for reply in replies))
        # SGLang's replies count as if each step drafted the K of its start.
        active = after.get(ACTIVE, 0.0) - 1.0
        return tokens / steps, drafted / steps or (active if active >= 0.0 else None)
    names = (DRAFTS, ACCEPTED, DRAFTED)
    drafts, accepted, drafted = (after.get(k, 0.0) - before.get(k, 0.0) for k in names)
    if DRAFTS not in after or not tokens:
        return None, None
    # vLLM counts the steps that draft; any other step commits one token of its own.
    steps = max(drafts, tokens - accepted)
    return 1.0 + accepted / steps, drafted / steps


async def _reply(server: Server, form: RequestForm, prompt: str) -> StreamedReply:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    asked = form.fields(prompt) | {"stream": True, "stream_options": usage}
    whole, reply = False, StreamedReply()
    async with server.http.stream("POST", form.path, json=asked) as stream:
        if stream.is_error:
            await stream.aread()  # Its text is the reason.
        stream.raise_for_status()
        async for line in stream.aiter_lines():
            whole |= line == "data: [DONE]"
            if line.startswith("data: {"):
                reply.add(json.loads(line[6:]), monotonic())
    if not whole or not reply.at_s:
        raise httpx.ReadError("a reply ended in the middle, or has no token")
    return reply

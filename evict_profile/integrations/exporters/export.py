"""What every format has: a document, its notes on what was lost, how to run it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evict_profile.advice.acceptance import AcceptedLengths
from evict_profile.errors import ConfigError, TableError
from evict_profile.integrations.exporters.curves import TokenCurve
from evict_profile.table import CostTable, Staircase

SENTENCES = {
    "engine": "Prices of {key.engine}, not of {system}, whose prices differ: use this "
    "file to try the format, not to serve.",
    "priced": "Priced at context {context} alone, and at one union for each token "
    "count (activation curve: {curve}); the {percent} % interval, up to ±{widest:.1%} "
    "of a price, is not in the numbers.",
    "unchecked": "{system} does not check that it serves what is priced: "
    "{key.model} ({key.dtype}) on {key.where}, {key.engine} {key.engine_version}, "
    "{key.moe_backend}, {key.graph_mode}.",
    "batch": "The batch is lost: each token count has the price of the smallest batch "
    "that has it, and other batches cost up to {apart:.1%} else.",
    "no draft": "Steps hold verification alone. The scheduler divides by the whole "
    "step, so without the draft's fixed cost it cuts too early: give it with "
    "--draft-ms.",
    "draft": "{draft_ms:g} ms of drafting are in every step, as given.",
    "sum": "As a sum of requests and tokens the staircases are off by {error}.",
    "requests": "Beyond {requests} requests SGLang keeps the price of that many.",
    "falls": "Costs fall somewhere; vLLM takes the largest cost up to there instead.",
    "sglang gap": "No batch has a price at {low} to {high} tokens: SGLang takes them "
    "for as cheap as {before}.",
    "vllm gap": "No batch has a price at {low} to {high} tokens: vLLM takes them for "
    "as dear as {after}, or interpolates beyond its captured sizes.",
    "sglang end": "Priced up to {last} tokens. SGLang repeats the last price from "
    "there on, so that further tokens look free: keep max-running-requests times the "
    "verify window within {last}.",
    "vllm end": "Priced up to {last} tokens. vLLM goes on from there at "
    "{slope_ms:.4g} ms a token, as between the last two points, and its steps with "
    "prompts in them lie there.",
    "schedule": "One acceptance for all requests ({source}) and one context, "
    "{context}: prompts, temperatures and lengths that accept otherwise want another "
    "schedule. Trees, intervals and the table's key are not in it.",
    "schedule draft": "Drafting: {drafting}.",
    "schedule end": "Priced up to batch {last}; beyond it nothing is drafted.",
    "schedule engine": "Priced for {key.engine} {key.engine_version}, not for "
    "{system}, whose prices differ: use this schedule to try it, and measure.",
    "vllm schedule": "vLLM 0.32 drops the schedule under data parallelism; without "
    "VLLM_USE_V2_MODEL_RUNNER=1 it runs piecewise graphs with one.",
    "sglang adaptive": "For SGLang 0.5.20 to 0.5.23, EAGLE or EAGLE3 with topk 1: it "
    "rounds a batch up to a captured size before it looks here.",
    "llama costs": "For builds with llama.cpp PR 17034: GGML_BATCH_COSTS={costs} (its "
    "rule drafts until a path's probability is below the average cost of a token, "
    "where the next token costs a marginal one).",
    "llama without": "No acceptance was given, so no flags: give llama-server's 'acc "
    "per pos' as --acceptance, or a --trace.",
    "llama rule": "{name} ({flags}): {speed} of plain decoding.",
    "llama default": "Untold, llama.cpp drafts 3: {speed} of plain decoding.",
    "llama gain": "Advised: {speed} of plain decoding, by {source}.",
    "llama check": "To see it on your server, accepted as given whatever is drafted: "
    "{server} --spec-type TYPE --spec-draft-n-max {n_max} --spec-draft-p-min 0 "
    "--spec-synth-rates {rates}",
    "trtllm schedule": "Each key is the last batch of its stretch, as TensorRT-LLM "
    "reads it where batches beyond the last key draft nothing; releases that require "
    "the key 1 read keys as first batches: do not use it there. No batch drafts more "
    "than the smallest one, {most}.",
}
"""What a format may have lost of a table."""


MAX_DRAFT_MS = 60_000.0
"""No drafting step takes a minute: a longer one was given in another unit."""


@dataclass(frozen=True)
class ExportOptions:
    """What a format may need beside the table.

    Attributes:
        context: a context of the table; None takes its smallest.
        draft_ms: time of one drafting step, which the table does not hold.
        lengths: the acceptance that a schedule is made for.
        level_ms: time to draft one token more, for a schedule.
        most_requests: that the engine runs at once; a table must price them.
        most_tokens: that the engine verifies at once; likewise.
        trace: that the acceptance is of, for rules that look at each draft.
    """

    context: int | None = None
    draft_ms: float | None = None
    lengths: AcceptedLengths | None = None
    level_ms: float | None = None
    most_requests: int | None = None
    most_tokens: int | None = None
    trace: Path | None = None

    def __post_init__(self) -> None:
        if self.draft_ms is not None and not 0.0 < self.draft_ms <= MAX_DRAFT_MS:
            raise ConfigError(
                f"--draft-ms {self.draft_ms:g} is no time of a drafting step; give "
                f"milliseconds above 0 and at most {MAX_DRAFT_MS:g}"
            )


@dataclass(frozen=True)
class Export:
    """A document in a system's format.

    Attributes:
        fields: what the system loads.
        notes: what this format lost of this table, one sentence each.
        command: runs the system with it, called FILE; empty where there is none.
        style: how the file is written; YAML holds the notes as comments.
    """

    fields: Mapping[str, Any]
    notes: tuple[str, ...]
    command: str = ""
    style: Literal["json", "yaml"] = "json"


def staircases_at(table: CostTable, context: int | None) -> tuple[Staircase, ...]:
    """The staircases at one context, by default the smallest; smallest batch first.

    Raises:
        TableError: no such context, or the steps hold more than verification.
    """
    contexts = sorted({stairs.context for stairs in table.staircases})
    wanted = contexts[0] if context is None else context
    if wanted not in contexts:
        raise TableError(
            f"no staircase at context {wanted}; this table has context "
            f"{', '.join(map(str, contexts))}: name one of them with --context"
        )
    found = [stairs for stairs in table.staircases if stairs.context == wanted]
    if any(stairs.includes != ("verify",) for stairs in found):
        raise TableError(
            f"the staircases at context {wanted} hold more than verification, which "
            "this exporter cannot take apart; use a table of verification alone"
        )
    return tuple(sorted(found, key=lambda stairs: stairs.batch))


def say(sentence: str, **facts: object) -> str:
    """One of the sentences, with what it tells of filled in."""
    return SENTENCES[sentence].format(**facts)


def lost_by_all(
    table: CostTable,
    staircases: Sequence[Staircase],
    system: str,
    draft_ms: float | None,
) -> Iterator[str]:
    """The sentences that hold for every format."""
    activation = table.activation
    curve = "a guess" if activation.is_guess else activation.workload
    widest = max(
        max(high - cost, cost - low) / cost
        for stairs in staircases
        for cost, low, high in zip(
            stairs.step_cost_us, stairs.low_us, stairs.high_us, strict=True
        )
    )
    if system.lower() not in table.key.engine.lower():
        yield say("engine", key=table.key, system=system)
    yield say(
        "priced",
        context=staircases[0].context,
        curve=curve,
        percent=table.interval_percent,
        widest=widest,
    )
    yield say("unchecked", key=table.key, system=system)
    yield say("draft" if draft_ms else "no draft", draft_ms=draft_ms)


def lost_by_tokens(curve: TokenCurve, gap: str) -> Iterator[str]:
    """What a price by tokens alone loses, where several batches were measured."""
    if curve.apart:
        yield say("batch", apart=curve.apart)
    for low, high in curve.gaps:
        yield say(gap, low=low, high=high, before=low - 1, after=high + 1)

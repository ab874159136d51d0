"""A cost table in the formats that serving systems load: a function a format.

Each format holds less than the table, so each comes with a note on what it lost.
Nothing here imports a serving system: the formats are theirs, the code is not.

SGLang and vLLM look a step up by the tokens it verifies in all, roots included. A
table has a staircase for each batch, and a batch asks for a root from each request,
so its staircase speaks from `batch` tokens on. Where several speak, a curve by tokens
takes the smallest batch: it stays on one staircase as long as it can, and so keeps the
price of the next token, which is what a scheduler weighs. docs/how-to/export.md
compares it with the largest batch.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from evict_profile.errors import ConfigError, TableError
from evict_profile.io import write_text
from evict_profile.records import to_mapping
from evict_profile.stats import Bools, ErrorSummary, Floats, Ints, summarise_errors
from evict_profile.table import CostTable, Staircase

SENTENCES = {
    "engine": "Measured with {key.engine}, not with {system}, whose prices differ: use "
    "this file to try the format, not to serve.",
    "priced": "Priced at context {context} alone, and at one union for each token "
    "count (activation curve: {curve}); the {percent} % interval, up to ±{widest:.1%} "
    "of a price, is not in the numbers.",
    "unchecked": "{system} does not check that it serves what was measured: "
    "{key.model} ({key.dtype}) on {key.where}, {key.engine} {key.engine_version}, "
    "{key.moe_backend}, {key.graph_mode}.",
    "batch": "The batch is lost: each token count has the price of the smallest batch "
    "measured with it, and other batches cost up to {apart:.1%} else.",
    "no draft": "Steps hold verification alone. The scheduler divides by the whole "
    "step, so without the draft's fixed cost it cuts too early: give it with "
    "--draft-ms.",
    "draft": "{draft_ms:g} ms of drafting are in every step, as given.",
    "sum": "As a sum of requests and tokens the staircases are off by {error}.",
    "requests": "Beyond {requests} requests SGLang keeps the price of that many.",
    "falls": "Costs fall somewhere; vLLM takes the largest cost up to there instead.",
    "sglang gap": "No batch was measured at {low} to {high} tokens: SGLang takes them "
    "for as cheap as {before}.",
    "vllm gap": "No batch was measured at {low} to {high} tokens: vLLM takes them for "
    "as dear as {after}, or interpolates beyond its captured sizes.",
    "sglang end": "Measured up to {last} tokens. SGLang repeats the last price from "
    "there on, so that further tokens look free: keep max-running-requests times the "
    "verify window within {last}.",
    "vllm end": "Measured up to {last} tokens. vLLM goes on from there at "
    "{slope_ms:.4g} ms a token, as between the last two points, and its steps with "
    "prompts in them lie there.",
    "one count": "Only {last} tokens were measured: vLLM prices every count like it.",
}
"""What a format may have lost of a table."""

MAX_DRAFT_MS = 60_000.0
"""No drafting step takes a minute: a longer one was given in another unit."""


@dataclass(frozen=True)
class Export:
    """A document in a system's format.

    Attributes:
        fields: what the system loads.
        notes: what this format lost of this table, one sentence each.
    """

    fields: Mapping[str, Any]
    notes: tuple[str, ...]


def write_format(
    table: CostTable,
    name: str,
    out: Path,
    context: int | None = None,
    draft_ms: float | None = None,
) -> str:
    """Write a table in a system's format; returns the note on what it lost, which also
    stands in the file, under `evict_profile`, beside the table's key.

    Args:
        context: a context of the table; its smallest by default.
        draft_ms: time of one drafting step, which the table does not hold.

    Raises:
        ConfigError: no such format, or a draft time that is missing or cannot be.
        TableError: the table does not hold what the format needs.
        StoreError: the file cannot be written.
    """
    if name not in FORMATS:
        raise ConfigError(f"no format '{name}'; choose one of {', '.join(FORMATS)}")
    if draft_ms is not None and not 0.0 < draft_ms <= MAX_DRAFT_MS:
        raise ConfigError(
            f"--draft-ms {draft_ms:g} is no time of a drafting step; give milliseconds "
            f"above 0 and at most {MAX_DRAFT_MS:g}"
        )
    staircases = staircases_at(table, context)
    export = FORMATS[name](table, staircases, draft_ms)
    origin = {
        "key": to_mapping(table.key),
        "table_version": table.version,
        "samples_sha256": table.provenance.samples_sha256,
        "context": staircases[0].context,
        "note": export.notes,
    }
    lines = [
        f'"{field}": {json.dumps(value, ensure_ascii=False)}'
        for field, value in {**export.fields, "evict_profile": origin}.items()
    ]
    write_text("{" + ",\n ".join(lines) + "}\n", out)
    return "\n".join(export.notes)


def sglang_sps(
    table: CostTable, staircases: Sequence[Staircase], draft_ms: float | None
) -> Export:
    """SGLang's `SpsCostTable`: steps per second by tokens verified in all.

    SGLang keeps the last sample at or under the tokens asked for (a floor look-up), so
    a sample is needed wherever the price changes, and a flat tier needs only its
    first. The last count measured is kept as well: it says where the measuring ended,
    and SGLang takes a table of a single sample for one that was never filled in.

    Raises:
        TableError: a single token count, which SGLang ignores.
    """
    curve = token_curve(staircases)
    last = int(curve.tokens[-1])
    if len(curve.tokens) < 2:
        raise TableError(
            f"only {last} tokens were measured at context {staircases[0].context}, and "
            "SGLang ignores a table of one sample; sweep more widths"
        )
    kept = curve.begins_tier | (curve.tokens == last)
    step_us = curve.step_cost_us[kept] + 1e3 * (draft_ms or 0.0)
    fields = {
        "sample_batch_tokens": curve.tokens[kept].tolist(),
        "sample_steps_per_sec": (1e6 / step_us).tolist(),
        "max_batch_tokens": last,
    }
    notes = (
        *_lost_by_all(table, staircases, "SGLang", draft_ms),
        *_lost_by_tokens(curve, "sglang gap"),
        _say("sglang end", last=last),
    )
    return Export(fields, notes)


def sglang_sps_additive(
    table: CostTable, staircases: Sequence[Staircase], draft_ms: float | None
) -> Export:
    """SGLang's `SpsAdditiveCostTable`: bias + alpha(requests) + theta(tokens in all).

    It tells batches apart, and loses something where the price of a token depends on
    the batch, as on a ladder of graph widths; the error of the sum over all measured
    points says how much. Drafting is in the bias where it is given.

    Raises:
        TableError: batches that do not determine the sum.
    """
    fields, error = fit_additive(staircases)
    fields["bias_seconds"] += 1e-3 * (draft_ms or 0.0)
    notes = (
        *_lost_by_all(table, staircases, "SGLang", draft_ms),
        _say("sum", error=error),
        _say("requests", requests=fields["bs_probes"][-1]),
        _say("sglang end", last=fields["m_probes"][-1]),
    )
    return Export(fields, notes)


def vllm_curves(
    table: CostTable, staircases: Sequence[Staircase], draft_ms: float | None
) -> Export:
    """The two curves of vLLM's `AdaptiveVerificationManager.set_cost_curves`.

    vLLM reads no file: whoever calls the method passes `draft_curve` and
    `verify_curve`, lists of (size, milliseconds). Within captured sizes it takes the
    first point at or above the tokens asked for, beyond them it interpolates, and it
    makes costs non-decreasing. Both ends of every flat tier are kept, which is exact
    under either.

    It divides expected tokens by draft(requests) + verify(tokens). A draft curve of
    zeros would look measured, so the time of one drafting step must be given: a curve
    of one point, which vLLM extends to any batch.

    Raises:
        ConfigError: no draft time was given.
    """
    if draft_ms is None:
        raise ConfigError(
            "vLLM adds a draft cost to every price, and a cost table prices "
            "verification alone; give the time of one drafting step with --draft-ms"
        )
    curve = token_curve(staircases)
    kept = curve.begins_tier | np.append(curve.begins_tier[1:], True)
    cost_ms = (curve.step_cost_us[kept] / 1e3).round(6).tolist()
    verify_ms = list(zip(curve.tokens[kept].tolist(), cost_ms, strict=True))
    (low, low_ms), (last, last_ms) = verify_ms[-2:] if verify_ms[1:] else 2 * verify_ms
    slope_ms = max(last_ms - low_ms, 0.0) / max(last - low, 1)
    notes = [
        *_lost_by_all(table, staircases, "vLLM", draft_ms),
        *_lost_by_tokens(curve, "vllm gap"),
        _say("vllm end" if last > low else "one count", last=last, slope_ms=slope_ms),
    ]
    if (np.diff(curve.step_cost_us) < 0.0).any():
        notes.append(_say("falls"))
    fields = {"draft_curve": [(1, draft_ms)], "verify_curve": verify_ms}
    return Export(fields, tuple(notes))


FORMATS: Mapping[str, Callable[..., Export]] = {
    "sglang-sps": sglang_sps,
    "sglang-sps-additive": sglang_sps_additive,
    "vllm-curves": vllm_curves,
}
"""What `evict-profile export TABLE --format` calls."""


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


def measured_tokens(stairs: Staircase) -> range:
    """Token counts that the batch of this staircase can ask for."""
    return range(stairs.batch, len(stairs.step_cost_us))


def _measured(staircases: Sequence[Staircase]) -> list[tuple[int, int, float]]:
    """(batch, tokens, step cost) of all that was measured."""
    return [
        (stairs.batch, tokens, stairs.step_cost_us[tokens])
        for stairs in staircases
        for tokens in measured_tokens(stairs)
    ]


@dataclass(frozen=True)
class TokenCurve:
    """Step cost by tokens in all.

    Attributes:
        tokens: int64 [counts], increasing; counts that no measured batch makes are
            absent.
        step_cost_us: float64 [counts].
        apart: largest relative difference, over the staircases, between what a
            staircase says and what the curve says at the same tokens.
    """

    tokens: Ints
    step_cost_us: Floats
    apart: float

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """First and last token count of each stretch that was not measured."""
        steps = pairwise(self.tokens.tolist())
        return tuple((low + 1, high - 1) for low, high in steps if high - low > 1)

    @property
    def begins_tier(self) -> Bools:
        """bool [counts]: whether the cost is another than one count before."""
        return np.append(True, np.diff(self.step_cost_us) != 0.0)


def token_curve(staircases: Sequence[Staircase]) -> TokenCurve:
    """The curve of staircases at one context, smallest batch first."""
    _, measured, cost_us = np.array(_measured(staircases)).T
    tokens, first, which = np.unique(measured, return_index=True, return_inverse=True)
    apart = np.abs(cost_us[first][which] / cost_us - 1.0).max()
    return TokenCurve(tokens.astype(np.int64), cost_us[first], float(apart))


def fit_additive(
    staircases: Sequence[Staircase],
) -> tuple[dict[str, Any], ErrorSummary]:
    """The sum nearest to staircases at one context, smallest batch first.

    Non-negative least squares on relative residuals, because a scheduler divides by
    the price. alpha of the smallest batch and theta of the fewest tokens are 0 and
    stand in the bias; without that the three would not be determined.

    Returns:
        SGLang's fields, between whose probes it interpolates linearly, and the
        relative error of the sum over the measured (batch, tokens).

    Raises:
        TableError: the batches do not determine it, or it has no bias.
    """
    _check_overlap(staircases)
    batch, tokens, cost_us = np.array(_measured(staircases), dtype=np.float64).T
    batches, which_batch = np.unique(batch, return_inverse=True)
    counts, which_count = np.unique(tokens, return_inverse=True)
    design = np.hstack(
        [
            np.ones((len(cost_us), 1)),
            np.eye(len(batches))[which_batch, 1:],
            np.eye(len(counts))[which_count, 1:],
        ]
    )
    relative = design / cost_us[:, None]
    size = np.linalg.norm(relative, axis=0)  # NNLS stops early on columns not levelled
    sum_us = nnls(relative / size, np.ones(len(cost_us)))[0] / size
    # A nanosecond is finer than any staircase is.
    bias, *rest = (sum_us * 1e-6).round(9).tolist()
    if bias <= 0.0:
        raise TableError(
            "the staircases fall with the batch or the tokens, so that no sum with a "
            "positive bias is near them; use sglang-sps, or sweep anew"
        )
    fields = {
        "bias_seconds": bias,
        "bs_probes": [int(batch) for batch in batches],
        "alpha_seconds": [0.0, *rest[: len(batches) - 1]],
        "m_probes": [int(count) for count in counts],
        "theta_seconds": [0.0, *rest[len(batches) - 1 :]],
    }
    return fields, summarise_errors(design @ sum_us, cost_us)


def _check_overlap(staircases: Sequence[Staircase]) -> None:
    """Batches are told from tokens only where two batches share a token count."""
    ends = accumulate((measured_tokens(s)[-1] for s in staircases), max)
    after = zip(staircases[1:], ends, strict=False)
    apart = [stairs.batch for stairs, end in after if stairs.batch > end]
    if apart:
        why = f"batch {apart[0]} shares no token count with a smaller one"
    elif len(staircases) == 1:
        why = f"batch {staircases[0].batch} is the only one"
    else:
        return
    raise TableError(
        f"{why} at context {staircases[0].context}, so the price of a request cannot "
        "be told from that of a token; use sglang-sps, or sweep batches that overlap"
    )


def _say(sentence: str, **facts: object) -> str:
    return SENTENCES[sentence].format(**facts)


def _lost_by_all(
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
        yield _say("engine", key=table.key, system=system)
    yield _say(
        "priced",
        context=staircases[0].context,
        curve=curve,
        percent=table.interval_percent,
        widest=widest,
    )
    yield _say("unchecked", key=table.key, system=system)
    yield _say("draft" if draft_ms else "no draft", draft_ms=draft_ms)


def _lost_by_tokens(curve: TokenCurve, gap: str) -> Iterator[str]:
    """What a price by tokens alone loses, where several batches were measured."""
    if curve.apart:
        yield _say("batch", apart=curve.apart)
    for low, high in curve.gaps:
        yield _say(gap, low=low, high=high, before=low - 1, after=high + 1)

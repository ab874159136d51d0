"""Prices for planners that decide step by step: SGLang's DSpark, vLLM's budget.

Both look a step up by the tokens it verifies in all, roots included. A table has a
staircase for each batch, and a batch asks for a root from each request, so its
staircase speaks from `batch` tokens on. Where several speak, a curve by tokens takes
the smallest batch: it stays on one staircase as long as it can, and so keeps the price
of the next token, which is what a scheduler weighs. docs/how-to/export.md compares it
with the largest batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from scipy.optimize import nnls

from evict_profile.errors import ConfigError, TableError
from evict_profile.integrations.exporters.export import (
    Export,
    ExportOptions,
    staircases_at,
)
from evict_profile.stats import (
    Bools,
    ErrorSummary,
    Floats,
    Ints,
    summarise_errors,
)
from evict_profile.table import CostTable, Staircase

SGLANG_END = (
    "Priced up to {} tokens. SGLang repeats the last price from there on, so that "
    "further tokens look free: keep max-running-requests times the verify window "
    "within that."
)


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

    @classmethod
    def of(cls, staircases: Sequence[Staircase]) -> "TokenCurve":
        """The curve of staircases at one context, smallest batch first."""
        _, measured, cost_us = np.array(measured_points(staircases)).T
        tokens, first, which = np.unique(
            measured, return_index=True, return_inverse=True
        )
        apart = np.abs(cost_us[first][which] / cost_us - 1.0).max()
        return cls(tokens.astype(np.int64), cost_us[first], float(apart))

    @property
    def last(self) -> int:
        """The most tokens that are priced."""
        return int(self.tokens[-1])

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """First and last token count of each stretch that was not measured."""
        steps = pairwise(self.tokens.tolist())
        return tuple((low + 1, high - 1) for low, high in steps if high - low > 1)

    @property
    def begins_tier(self) -> Bools:
        """bool [counts]: whether the cost is another than one count before."""
        return np.append(True, np.diff(self.step_cost_us) != 0.0)


def measured_points(staircases: Sequence[Staircase]) -> list[tuple[int, int, float]]:
    """(batch, tokens, step cost) of all token counts that the batches can ask for."""
    return [
        (stairs.batch, tokens, stairs.step_cost_us[tokens])
        for stairs in staircases
        for tokens in range(stairs.batch, len(stairs.step_cost_us))
    ]


def sglang_sps(table: CostTable, options: ExportOptions) -> Export:
    """SGLang's `SpsCostTable`: steps per second by tokens verified in all.

    SGLang keeps the last sample at or under the tokens asked for (a floor look-up), so
    a sample is needed wherever the price changes, and a flat tier needs only its
    first. The last count measured is kept as well: it says where the measuring ended,
    and SGLang takes a table of a single sample for one that was never filled in.

    Raises:
        TableError: the curve would never steer.
    """
    staircases, curve = _steering(table, options)
    kept = curve.begins_tier | (curve.tokens == curve.last)
    step_us = curve.step_cost_us[kept] + 1e3 * (options.draft_ms or 0.0)
    fields = {
        "sample_batch_tokens": curve.tokens[kept].tolist(),
        "sample_steps_per_sec": (1e6 / step_us).tolist(),
        "max_batch_tokens": curve.last,
    }
    notes = (
        *_not_in_prices(table, staircases, options),
        *_lost_by_tokens(curve),
        SGLANG_END.format(curve.last),
    )
    return Export(fields, notes)


def sglang_sps_additive(table: CostTable, options: ExportOptions) -> Export:
    """SGLang's `SpsAdditiveCostTable`: bias + alpha(requests) + theta(tokens in all).

    It tells batches apart, and loses something where the price of a token depends on
    the batch, as on a ladder of graph widths; the error of the sum over all measured
    points says how much. Drafting is in the bias where it is given.

    Raises:
        TableError: batches that do not determine the sum, or a sum that never steers.
    """
    staircases, curve = _steering(table, options)
    fields, error = fit_additive(staircases)
    fields["bias_seconds"] += 1e-3 * (options.draft_ms or 0.0)
    notes = (
        *_not_in_prices(table, staircases, options),
        f"As a sum of requests and tokens the staircases are off by {error}.",
        f"Beyond {staircases[-1].batch} requests SGLang keeps the price of that many.",
        SGLANG_END.format(curve.last),
    )
    return Export(fields, notes)


def vllm_curves(table: CostTable, options: ExportOptions) -> Export:
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
        TableError: the curve would never steer.
    """
    if options.draft_ms is None:
        raise ConfigError(
            "vLLM adds a draft cost to every price, and a cost table prices "
            "verification alone; give the time of one drafting step with --draft-ms"
        )
    staircases, curve = _steering(table, options)
    kept = curve.begins_tier | np.append(curve.begins_tier[1:], True)
    cost_ms = (curve.step_cost_us[kept] / 1e3).round(6).tolist()
    verify_ms = list(zip(curve.tokens[kept].tolist(), cost_ms, strict=True))
    (low, low_ms), (last, last_ms) = verify_ms[-2:]
    slope_ms = max(last_ms - low_ms, 0.0) / (last - low)
    notes = [
        *_not_in_prices(table, staircases, options),
        *_lost_by_tokens(curve),
        f"Priced up to {last} tokens. vLLM goes on from there at {slope_ms:.4g} ms a "
        "token, as between the last two points, and its steps with prompts in them "
        "lie there.",
    ]
    if (np.diff(curve.step_cost_us) < 0.0).any():
        notes.append(
            "Costs fall somewhere; vLLM takes the largest cost up to there instead."
        )
    fields = {"draft_curve": [(1, options.draft_ms)], "verify_curve": verify_ms}
    return Export(fields, tuple(notes))


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
    ends = accumulate((len(stairs.step_cost_us) for stairs in staircases), max)
    overlap = [s.batch < end for s, end in zip(staircases[1:], ends, strict=False)]
    if not overlap or not all(overlap):
        raise TableError(
            f"at context {staircases[0].context} a batch shares no token count with a "
            "smaller one, or is the only one, so the price of a request cannot "
            "be told from that of a token; use sglang-sps, or sweep batches that "
            "overlap"
        )
    batch, tokens, cost_us = np.array(measured_points(staircases), dtype=np.float64).T
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


def _steering(
    table: CostTable, options: ExportOptions
) -> tuple[tuple[Staircase, ...], TokenCurve]:
    """The staircases at one context, and a curve by which a planner would trim.

    Raises:
        TableError: flat, inert, or shorter than what the engine will ask for.
    """
    staircases = staircases_at(table, options.context)
    curve = TokenCurve.of(staircases)
    if options.most_tokens is not None and options.most_tokens > curve.last:
        raise TableError(
            f"the curve ends at {curve.last} tokens, and the engine will ask for up to "
            f"{options.most_tokens}; sweep further, or let it run fewer requests or "
            "drafts"
        )
    if not _rises(curve.step_cost_us):
        raise TableError(
            f"the curve is flat from {curve.tokens[0]} to {curve.last} tokens: by it "
            "no draft ever costs anything; sweep wider, with routed experts that run"
        )
    if not any(_rises(s.step_cost_us[s.batch :]) for s in staircases):
        raise TableError(
            "the curve is inert: it rises from batch to batch alone, at no size that a "
            "planner can pick within one, so that it would never trim; sweep more "
            "widths"
        )
    return staircases, curve


def _rises(cost_us: Sequence[float] | Floats) -> bool:
    return bool(max(cost_us) > cost_us[0])


def _not_in_prices(
    table: CostTable, staircases: Sequence[Staircase], options: ExportOptions
) -> Iterator[str]:
    """What any price by tokens or requests loses of the table."""
    activation = table.activation
    workload = "a guess" if activation.is_guess else activation.workload
    widest = max(
        max(high - cost, cost - low) / cost
        for s in staircases
        for cost, low, high in zip(s.step_cost_us, s.low_us, s.high_us, strict=True)
    )
    yield (
        f"Priced at one union for each token count (activation curve: {workload}); the "
        f"{table.interval_percent} % interval, up to ±{widest:.1%} of a price, is not "
        "in the numbers."
    )
    if options.draft_ms:
        yield f"{options.draft_ms:g} ms of drafting are in every step, as given."
    else:
        yield (
            "Steps hold verification alone. The scheduler divides by the whole step, "
            "so without the draft's fixed cost it cuts too early: give it with "
            "--draft-ms."
        )


def _lost_by_tokens(curve: TokenCurve) -> Iterator[str]:
    """What a price by tokens alone loses, where several batches were measured."""
    if curve.apart:
        yield (
            "The batch is lost: each token count has the price of the smallest batch "
            f"that has it, and other batches cost up to {curve.apart:.1%} else."
        )
    for low, high in curve.gaps:
        yield (
            f"No batch has a price at {low} to {high} tokens: SGLang takes them for as "
            f"cheap as {low - 1}, vLLM for as dear as {high + 1}, or beyond its "
            "captured sizes for what lies between."
        )

"""The cost tables of SGLang's DSpark planner: by floor look-up, and as a sum."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from scipy.optimize import nnls

from evict_profile.errors import TableError
from evict_profile.integrations.exporters.curves import (
    check_steers,
    measured_points,
    measured_tokens,
    token_curve,
)
from evict_profile.integrations.exporters.export import (
    Export,
    ExportOptions,
    lost_by_all,
    lost_by_tokens,
    say,
    staircases_at,
)
from evict_profile.stats import ErrorSummary, summarise_errors
from evict_profile.table import CostTable, Staircase


def sglang_sps(table: CostTable, options: ExportOptions) -> Export:
    """SGLang's `SpsCostTable`: steps per second by tokens verified in all.

    SGLang keeps the last sample at or under the tokens asked for (a floor look-up), so
    a sample is needed wherever the price changes, and a flat tier needs only its
    first. The last count measured is kept as well: it says where the measuring ended,
    and SGLang takes a table of a single sample for one that was never filled in.

    Raises:
        TableError: a single token count, which SGLang ignores, or a curve that never
            rises.
    """
    staircases = staircases_at(table, options.context)
    curve = token_curve(staircases)
    last = int(curve.tokens[-1])
    if len(curve.tokens) < 2:
        raise TableError(
            f"only {last} tokens were measured at context {staircases[0].context}, and "
            "SGLang ignores a table of one sample; sweep more widths"
        )
    check_steers(curve, staircases, options.most_tokens)
    kept = curve.begins_tier | (curve.tokens == last)
    step_us = curve.step_cost_us[kept] + 1e3 * (options.draft_ms or 0.0)
    fields = {
        "sample_batch_tokens": curve.tokens[kept].tolist(),
        "sample_steps_per_sec": (1e6 / step_us).tolist(),
        "max_batch_tokens": last,
    }
    notes = (
        *lost_by_all(table, staircases, "SGLang", options.draft_ms),
        *lost_by_tokens(curve, "sglang gap"),
        say("sglang end", last=last),
    )
    return Export(fields, notes)


def sglang_sps_additive(table: CostTable, options: ExportOptions) -> Export:
    """SGLang's `SpsAdditiveCostTable`: bias + alpha(requests) + theta(tokens in all).

    It tells batches apart, and loses something where the price of a token depends on
    the batch, as on a ladder of graph widths; the error of the sum over all measured
    points says how much. Drafting is in the bias where it is given.

    Raises:
        TableError: batches that do not determine the sum, or a sum that never rises.
    """
    staircases = staircases_at(table, options.context)
    check_steers(token_curve(staircases), staircases, options.most_tokens)
    fields, error = fit_additive(staircases)
    fields["bias_seconds"] += 1e-3 * (options.draft_ms or 0.0)
    notes = (
        *lost_by_all(table, staircases, "SGLang", options.draft_ms),
        say("sum", error=error),
        say("requests", requests=fields["bs_probes"][-1]),
        say("sglang end", last=fields["m_probes"][-1]),
    )
    return Export(fields, notes)


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

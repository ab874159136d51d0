"""SGLang's `SpsAdditiveCostTable`: bias + alpha(requests) + theta(tokens in all).

It can tell batches apart, and holds only a sum: where the price of a token depends on
the batch, as on a ladder of graph widths or at other rows per expert, something is
lost, and the error of the sum over all measured places says how much. The fit is
non-negative least squares on relative residuals, because a scheduler divides by the
price. alpha of the smallest batch and theta of the fewest tokens are 0 and stand in
the bias; without that the three would not be determined.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from scipy.optimize import nnls

from evict_profile.errors import TableError
from evict_profile.integrations.by_tokens import measured_tokens, staircases_at
from evict_profile.integrations.export import Export, lost_by_all, no_draft
from evict_profile.integrations.sglang_sps import past_the_end
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.table import CostTable, Staircase

NANOSECOND = 9
"""Decimals of a second that are kept: finer than any staircase is."""


@dataclass(frozen=True)
class AdditiveCost:
    """A step's cost as a sum; probes between which SGLang interpolates linearly.

    Attributes:
        error: relative error of the sum over the measured (batch, tokens).
    """

    bias_seconds: float
    bs_probes: tuple[int, ...]
    alpha_seconds: tuple[float, ...]
    m_probes: tuple[int, ...]
    theta_seconds: tuple[float, ...]
    error: ErrorSummary


def additive_table(
    table: CostTable, context: int | None, draft_ms: float | None = None
) -> Export:
    """The additive table at one context, drafting in the bias where it is given.

    Raises:
        TableError: no such context, or batches that do not determine the sum.
    """
    staircases = staircases_at(table, context)
    cost = fit_additive(staircases)
    fields = {
        "bias_seconds": cost.bias_seconds + 1e-3 * (draft_ms or 0.0),
        "bs_probes": cost.bs_probes,
        "alpha_seconds": cost.alpha_seconds,
        "m_probes": cost.m_probes,
        "theta_seconds": cost.theta_seconds,
    }
    notes = (
        *lost_by_all(table, staircases, "SGLang"),
        *no_draft(draft_ms),
        f"As a sum of requests and tokens the staircases are off by {cost.error}.",
        f"Beyond {cost.bs_probes[-1]} requests SGLang keeps the price of that many.",
        past_the_end(cost.m_probes[-1]),
    )
    return Export(fields, notes)


def fit_additive(staircases: Sequence[Staircase]) -> AdditiveCost:
    """The sum nearest to staircases at one context, smallest batch first.

    Raises:
        TableError: the batches do not determine it, or it has no bias.
    """
    _require_overlap(staircases)
    batch, tokens, cost_us = _places(staircases)
    batches, which_batch = np.unique(batch, return_inverse=True)
    counts, which_count = np.unique(tokens, return_inverse=True)
    design = np.hstack(
        [
            np.ones((len(cost_us), 1)),
            np.eye(len(batches))[which_batch, 1:],
            np.eye(len(counts))[which_count, 1:],
        ]
    )
    sum_us = _relative_nnls(design, cost_us)
    seconds = [round(float(value) * 1e-6, NANOSECOND) for value in sum_us]
    if seconds[0] <= 0.0:
        raise TableError(
            "the staircases fall with the batch or the tokens, so that no sum with a "
            "positive bias is near them; use sglang-sps, or sweep anew"
        )
    return AdditiveCost(
        bias_seconds=seconds[0],
        bs_probes=tuple(int(batch) for batch in batches),
        alpha_seconds=(0.0, *seconds[1 : len(batches)]),
        m_probes=tuple(int(count) for count in counts),
        theta_seconds=(0.0, *seconds[len(batches) :]),
        error=summarise_errors(design @ sum_us, cost_us),
    )


def _require_overlap(staircases: Sequence[Staircase]) -> None:
    """Batches are told from tokens only where two batches share a token count."""
    ends = accumulate((measured_tokens(s)[-1] for s in staircases), max)
    apart = [
        s.batch for s, end in zip(staircases[1:], ends, strict=False) if s.batch > end
    ]
    if len(staircases) > 1 and not apart:
        return
    why = (
        f"batch {apart[0]} shares no token count with a smaller one"
        if apart
        else f"batch {staircases[0].batch} is the only one"
    )
    raise TableError(
        f"{why} at context {staircases[0].context}, so the price of a request cannot "
        "be told from that of a token; use sglang-sps, or sweep batches that overlap"
    )


def _places(staircases: Sequence[Staircase]) -> tuple[Floats, Floats, Floats]:
    places = [
        (stairs.batch, tokens, stairs.step_cost_us[tokens])
        for stairs in staircases
        for tokens in measured_tokens(stairs)
    ]
    batch, tokens, cost_us = np.array(places, dtype=np.float64).T
    return batch, tokens, cost_us


def _relative_nnls(design: Floats, cost_us: Floats) -> Floats:
    matrix = design / cost_us[:, None]
    # NNLS stops early unless columns are levelled.
    size = np.linalg.norm(matrix, axis=0)
    solution, _ = nnls(matrix / size, np.ones(len(cost_us)))
    levelled: Floats = solution / size
    return levelled

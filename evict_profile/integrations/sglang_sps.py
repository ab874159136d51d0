"""SGLang's `SpsCostTable`: steps per second by tokens verified in all.

SGLang keeps the last sample at or under the tokens asked for (a floor look-up), so a
sample is needed wherever the price changes, and a flat tier needs only its first.
The last count measured is kept as well: it says where the measuring ended, and
SGLang takes a table of a single sample for one that was never filled in.
"""

from evict_profile.errors import TableError
from evict_profile.integrations.by_tokens import TokenCurve, staircases_at, token_curve
from evict_profile.integrations.export import (
    Export,
    lost_by_all,
    lost_by_tokens,
    no_draft,
)
from evict_profile.table import CostTable


def sps_table(
    table: CostTable, context: int | None, draft_ms: float | None = None
) -> Export:
    """The step-per-second table at one context, drafting included where it is given.

    Raises:
        TableError: no such context, or a single token count, which SGLang ignores.
    """
    staircases = staircases_at(table, context)
    curve = token_curve(staircases)
    if len(curve.tokens) < 2:
        raise TableError(
            f"only {curve.tokens[0]} tokens were measured at context "
            f"{staircases[0].context}, and SGLang ignores a table of one sample; "
            "sweep more widths"
        )
    samples = _samples(curve, 1e3 * (draft_ms or 0.0))
    fields = {
        "sample_batch_tokens": list(samples),
        "sample_steps_per_sec": list(samples.values()),
        "max_batch_tokens": curve.tokens[-1],
    }
    notes = (
        *lost_by_all(table, staircases, "SGLang"),
        *no_draft(draft_ms),
        *lost_by_tokens(curve),
        *(
            f"No batch was measured at {low} to {high} tokens: SGLang takes them for "
            f"as cheap as {low - 1}."
            for low, high in curve.gaps
        ),
        past_the_end(curve.tokens[-1]),
    )
    return Export(fields, notes)


def past_the_end(last: int) -> str:
    """What SGLang does beyond the last token count, in either of its formats."""
    return (
        f"Measured up to {last} tokens. SGLang repeats the last price from there on, "
        "so that further tokens look free: keep max-running-requests times the verify "
        f"window within {last}."
    )


def _samples(curve: TokenCurve, draft_us: float) -> dict[int, float]:
    """Steps per second where the price changes, and at the last token count."""
    samples: dict[int, float] = {}
    before_us = 0.0
    for tokens, cost_us in zip(curve.tokens, curve.step_cost_us, strict=True):
        if cost_us != before_us or tokens == curve.tokens[-1]:
            samples[tokens] = 1e6 / (cost_us + draft_us)
        before_us = cost_us
    return samples

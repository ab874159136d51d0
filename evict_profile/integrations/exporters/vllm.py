"""The curves of vLLM's adaptive verification."""

import numpy as np

from evict_profile.errors import ConfigError
from evict_profile.integrations.exporters.curves import check_steers, token_curve
from evict_profile.integrations.exporters.export import (
    Export,
    ExportOptions,
    lost_by_all,
    lost_by_tokens,
    say,
    staircases_at,
)
from evict_profile.table import CostTable


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
        TableError: a curve that never rises.
    """
    if options.draft_ms is None:
        raise ConfigError(
            "vLLM adds a draft cost to every price, and a cost table prices "
            "verification alone; give the time of one drafting step with --draft-ms"
        )
    staircases = staircases_at(table, options.context)
    curve = token_curve(staircases)
    check_steers(curve, staircases, options.most_tokens)
    kept = curve.begins_tier | np.append(curve.begins_tier[1:], True)
    cost_ms = (curve.step_cost_us[kept] / 1e3).round(6).tolist()
    verify_ms = list(zip(curve.tokens[kept].tolist(), cost_ms, strict=True))
    (low, low_ms), (last, last_ms) = verify_ms[-2:]
    slope_ms = max(last_ms - low_ms, 0.0) / (last - low)
    notes = [
        *lost_by_all(table, staircases, "vLLM", options.draft_ms),
        *lost_by_tokens(curve, "vllm gap"),
        say("vllm end", last=last, slope_ms=slope_ms),
    ]
    if (np.diff(curve.step_cost_us) < 0.0).any():
        notes.append(say("falls"))
    fields = {"draft_curve": [(1, options.draft_ms)], "verify_curve": verify_ms}
    return Export(fields, tuple(notes))

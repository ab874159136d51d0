"""The two curves of vLLM's `AdaptiveVerificationManager.set_cost_curves`.

vLLM reads no file: whoever calls the method passes `draft_curve` and `verify_curve`,
lists of (size, milliseconds). Within captured sizes it takes the first point at or
above the tokens asked for, beyond them it interpolates, and it makes costs
non-decreasing. Both ends of every flat tier are kept, which is exact under either.

It divides expected tokens by draft(requests) + verify(tokens). A draft curve of zeros
would make it cut too early and look measured, and a cost table prices verification
alone; so the time of one drafting step must be given. It becomes a curve of one
point, which vLLM extends to every number of requests.
"""

from collections.abc import Iterator
from itertools import pairwise

from evict_profile.errors import ConfigError
from evict_profile.integrations.by_tokens import TokenCurve, staircases_at, token_curve
from evict_profile.integrations.export import Export, lost_by_all, lost_by_tokens
from evict_profile.table import CostTable


def cost_curves(
    table: CostTable, context: int | None, draft_ms: float | None
) -> Export:
    """The draft curve, as given, and the verify curve at one context.

    Raises:
        TableError: no such context.
        ConfigError: no draft time was given.
    """
    if draft_ms is None:
        raise ConfigError(
            "vLLM adds a draft cost to every price, and a cost table prices "
            "verification alone; give the time of one drafting step with --draft-ms"
        )
    staircases = staircases_at(table, context)
    curve = token_curve(staircases)
    verify_ms = [
        (tokens, round(cost_us / 1e3, 6)) for tokens, cost_us in _tier_ends(curve)
    ]
    notes = (
        *lost_by_all(table, staircases, "vLLM"),
        f"The draft curve is {draft_ms:g} ms at every number of requests, as given.",
        *lost_by_tokens(curve),
        *_falls(curve),
        *(
            f"No batch was measured at {low} to {high} tokens: vLLM takes them for as "
            f"dear as {high + 1}, or interpolates beyond its captured sizes."
            for low, high in curve.gaps
        ),
        _past_the_end(verify_ms),
    )
    return Export({"draft_curve": [(1, draft_ms)], "verify_curve": verify_ms}, notes)


def _tier_ends(curve: TokenCurve) -> Iterator[tuple[int, float]]:
    """The first and last token count of each stretch of equal cost."""
    points = list(zip(curve.tokens, curve.step_cost_us, strict=True))
    before = (0.0, *curve.step_cost_us)
    after = (*curve.step_cost_us[1:], 0.0)
    for point, left_us, right_us in zip(points, before, after, strict=False):
        if not left_us == point[1] == right_us:
            yield point


def _falls(curve: TokenCurve) -> tuple[str, ...]:
    if all(low <= high for low, high in pairwise(curve.step_cost_us)):
        return ()
    return ("Costs fall somewhere; vLLM takes the largest cost up to there instead.",)


def _past_the_end(verify_ms: list[tuple[int, float]]) -> str:
    last = verify_ms[-1][0]
    if len(verify_ms) == 1:
        return f"Only {last} tokens were measured: vLLM prices every count like it."
    (low, low_ms), (high, high_ms) = verify_ms[-2:]
    slope_ms = max(high_ms - low_ms, 0.0) / (high - low)
    return (
        f"Measured up to {last} tokens. vLLM goes on from there at {slope_ms:.4g} ms a "
        "token, as between the last two points, and its steps with prompts in them "
        "lie there."
    )

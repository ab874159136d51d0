"""Public runs of a drafter that is no EAGLE-3 head, against the time it is given."""

from pathlib import Path

import numpy as np

from benchmarks.served.record import B200_30B, CONTEXT, new_2026, table_of
from evict_profile.advice.drafting import drafter_of
from evict_profile.table import ServedStep

PAGE = Path("docs/decide/draft-length.md")


def of_pard(drafter):
    """Eight steps over plain ones as served and as predicted, on another's table."""
    table, rows = table_of(B200_30B), new_2026()
    rows = rows[rows["method"].str.startswith("PARD")]
    assert len(rows) == 8
    served = ServedStep.of(table, drafter=drafter_of(drafter, table, False))
    found = [
        served.ratio(int(batch), int(k) + 1, int(k), CONTEXT)
        for batch, k in zip(rows["concurrency"], rows["draft_tokens_K"], strict=True)
    ]
    return rows["step_over_plain"].to_numpy(), found


def test_the_page_states_the_errors():
    errors = []
    for drafter in ("pard:pard-qwen3-0.6b", "eagle3"):
        known, found = of_pard(drafter)
        off = np.abs(np.log(known / [each.value for each in found]))
        errors.append(100.0 * np.median(off))
    own, as_eagle = errors
    said = (
        f"median error of {own:.1f} %, and with {as_eagle:.1f} % as levels of EAGLE-3"
    )
    assert said in " ".join(PAGE.read_text().split())


def test_the_intervals_hold_them():
    known, found = of_pard("pard:pard-qwen3-0.6b")
    pairs = zip(found, known, strict=True)
    assert all(each.low < ratio < each.high for each, ratio in pairs)

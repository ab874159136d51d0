"""A batch that was not served lies between its served neighbours at constant K."""

import math

import pytest

from evict_profile.served.growth import BATCH_ERROR
from evict_profile.served.run import Run
from evict_profile.served.table import ServedTable
from evict_profile.table.key import Key

KEY = Key("h200", "qwen", "bf16", 1, 1, "sglang", "0.5.20", "", "", "")


def runs(batch, width, step_us, repeats):
    for count in range(repeats):
        yield Run(
            source=f"batch {batch}, {width} tokens, run {count}",
            batch=batch,
            drafts=width - 1,
            levels=width - 1,
            topk=1,
            width=width,
            step_us=step_us,
        )


def table(few, many, repeats=1):
    """Plain steps of 10 ms at batch 4 and 16, and steps of K = 3."""
    steps = ((4, 1, 1e4), (4, 4, few * 1e4), (16, 1, 1e4), (16, 4, many * 1e4))
    every = [run for step in steps for run in runs(*step, repeats)]
    return ServedTable(key=KEY, version="1.0.0", runs=tuple(every))


def test_the_ratio_lies_half_way_in_log_batch():
    found = table(1.2, 2.7).ratio(8, 4, 3)
    assert found.value.value == pytest.approx(math.sqrt(1.2 * 2.7))
    assert found.basis == "other batch"


def test_the_interval_holds_both_neighbours_with_theirs():
    known = table(1.2, 2.7)
    found = known.ratio(8, 4, 3).value
    assert found.low == pytest.approx(known.ratio(4, 4, 3).value.low)
    assert found.high == pytest.approx(known.ratio(16, 4, 3).value.high)


def test_runs_without_noise_leave_the_error_of_other_batches():
    found = table(1.5, 1.5, repeats=5).ratio(8, 4, 3).value
    assert found.low == pytest.approx(1.5 * math.exp(-BATCH_ERROR))
    assert found.high == pytest.approx(1.5 * math.exp(BATCH_ERROR))

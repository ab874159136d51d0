"""Synthetic subjects for tests, one factory a concept.

A run with a known cost, written as samples, for everything that fits; and what a
drafter brings on a workload that nobody ran, for the table of that run.
"""

import numpy as np

from evict_profile.acceptance import Acceptance, CalibrationError, ConditionalAcceptance
from evict_profile.cells import UNTIMED, Sample, frame_of, to_frame, with_latency
from evict_profile.config import GridSpec, SweepSpec, load_model
from evict_profile.drafting import DraftClock, Drafting
from evict_profile.fit.points import features_of
from evict_profile.records import replace
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.store import Header, Store
from evict_profile.table import ActivationCurve, BatchActivation

MODEL = load_model("tiny")
SWEEP = SweepSpec(
    name="known",
    grid=GridSpec(width=(1, 2, 4, 8, 16), union=5, context=(64, 256), batch=(1, 2)),
)
EXPERT_US, TOKEN_US, START_US, HEAD_US = 100.0, 20.0, 500.0, 40.0
BANDWIDTH_GBPS = 20.0
LAYERS = 2
REFERENCE_US = 2e4


def known_us(cell, union):
    """The cost that the samples are drawn around, for `LAYERS` layers."""
    if cell.part == "non_moe":
        return 200.0 + HEAD_US * cell.tokens
    per_layer = START_US + EXPERT_US * union + TOKEN_US * cell.tokens
    return LAYERS * (per_layer + 0.05 * cell.batch * cell.context)


def part_us(cost, cells):
    """By a fit, the part of a forward that each cell times, float64 [cells]."""
    features = features_of(cost.shape, frame_of(cells))
    non_moe = np.array([cell.part == "non_moe" for cell in cells])
    layers, rest = (p.latency_us(features) for p in (cost.layers, cost.non_moe))
    return np.where(non_moe, rest, layers)


def timed(latencies):
    """Samples of cells, with their `latency_us`."""
    return with_latency(
        to_frame(
            Sample(cell, 1, 0, 0, replace(UNTIMED, clock_us=us))
            for cell, own in latencies.items()
            for us in own
        )
    )


def write_run(folder, noise=0.005, repeats=8, rich=False, between=None):
    """A finished run whose samples scatter around the known cost.

    Args:
        between: how much more than known the validation cells cost; None measures none.
        rich: with all that a report can show: captured graphs, a clock paired with a
            reference, an event, cells left out, a name to escape.
    """
    model, sweep = MODEL, SWEEP
    if rich:
        model = replace(MODEL, name="<b>&tiny")
    if between is not None:
        sweep = replace(sweep, grid=replace(sweep.grid, validation=16))
    grid, rng, store = make_grid(sweep, model), np.random.default_rng(7), Store(folder)
    facts = {
        "device": "a test",
        "device_kind": "cpu",
        "layers": LAYERS,
        "dtype": "bfloat16",
        "model": model.name,
        "tp": 1,
        "ep": 1,
        "engine": "scripted",
        "engine_version": "1",
        "attention_backend": "none",
        "moe_backend": "none",
        "graph_mode": "eager",
        "clock": "none",
    }
    opened = {
        "capture_sizes": [1, 2, 4, 8, 16] if rich else [],
        "bandwidth_gbps": BANDWIDTH_GBPS,
        "bytes_per_expert": MODEL.bytes_per_expert,
    }
    union_test = {
        "width": 8,
        "small_union": 4,
        "large_union": 32,
        "single_token_width": 1,
        "single_token_union": 4,
        "differ": True,
        "us_per_expert": EXPERT_US,
    }
    store.create(Header(model, sweep, facts, opened, union_test, 0.0))
    for number in range(1, repeats + 1):
        samples = []
        for order, cell in enumerate(grid.measured):
            union = cell.union or MODEL.uniform_union(cell.tokens)
            clock = known_us(cell, union) * (1.0 + noise * rng.standard_normal())
            if cell in grid.validation:
                clock *= 1.0 + (between or 0.0)
            machine = 1.0 + 0.05 * rng.standard_normal() if rich else 1.0
            samples.append(
                Sample(
                    cell,
                    number,
                    order,
                    seed=order,
                    reading=replace(
                        UNTIMED,
                        clock_us=machine * clock,
                        reference_us=machine * REFERENCE_US if rich else float("nan"),
                        observed_union=union,
                        at_unix=number * 10.0 + order * 0.01,
                    ),
                    events="steal 3%" if rich and (number, order) == (2, 3) else "",
                )
            )
        store.append(samples)
    if rich:
        store.append(
            [
                Sample(cell, 0, order, 0, status="infeasible", reason=reason)
                for order, (cell, reason) in enumerate(grid.infeasible)
            ]
        )
    return store


TOKENS = np.arange(33.0)
ACCEPTANCE = Acceptance(
    workload="code",
    steps=100,
    scores=(0.0, 0.25, 0.5, 1.0),
    acceptances=((0.0, 0.25, 0.5, 0.75),),
    per_rank=(0.5, 0.125, 0.0625),
    held_out={
        "raw": CalibrationError(0.2, 0.3),
        "calibrated": CalibrationError(0.01, 0.1),
    },
    conditional=ConditionalAcceptance(
        scores=(0.0, 0.5, 1.0), acceptances=((0.0, 0.5, 0.875), (0.0, 0.25, 0.25))
    ),
)
ACTIVATION = ActivationCurve(
    workload="code",
    is_guess=False,
    union=tuple((4.0 + 0.5 * np.maximum(TOKENS - 1.0, 0.0)).tolist()),
    by_batch=(
        BatchActivation(
            1, tuple((4.0 + 0.25 * np.maximum(TOKENS[:17] - 1, 0)).tolist())
        ),
    ),
)
DRAFTING = Drafting(
    workload="code",
    engine="a test",
    batches=(
        DraftClock(1, (0.0, 100.0, 250.0, 450.0), 40.0, 10.0),
        DraftClock(4, (0.0, 400.0, 900.0, 1500.0), 80.0, 20.0),
    ),
)

"""EVICT's dense control: a world of as many parameters, all of which a token passes.

Both worlds are judged by one method on one machine: the engine verifies its own trees
of each width, which gives C(n) at the experts that a router chose, and the recording
has the times of drafting. `make results-dense` trains and records first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.claims.evict import Judged, Row, percent, plainly, rule
from benchmarks.claims.worlds import EVICT_DEPTH, EVICT_NODES, XEON, World, raw
from evict_profile.calibrate.study import as_acceptance, calibrate, workload_name
from evict_profile.fit.export import with_workload
from evict_profile.io import data_root
from evict_profile.records import replace as changed
from evict_profile.replay.compare import MIXED
from evict_profile.replay.policies import Fixed, plain_decoding
from evict_profile.replay.sums import tokens_per_s
from evict_profile.table import ActivationCurve, CostTable, Drafting
from evict_profile.table.parts import TermCost
from evict_profile.traces import Trace

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
ROUNDS = 24
"""Verifications of each width; the first of them warms up."""

WORLDS = {"MoE": "moe", "dense": "dense"}
"""Each world's recording."""


@dataclass(frozen=True)
class Verification:
    """The time of one width: the median over rounds, and its quartiles."""

    world: str
    width: int
    verify_us: float
    low_us: float
    high_us: float


def weights_of(world: str, recordings: Path) -> Path:
    """The shipped world, or the dense one that was trained beside the recordings."""
    shipped = data_root() / "examples/small_world/stdlib"
    return recordings / "dense-world" if world == "dense" else shipped


def time_widths(world: str, folder: Path, trace: Trace) -> Iterator[Verification]:
    """Process CPU time at the speed that the recording's reference states."""
    from examples.small_world.engine.session import TraceSession
    from examples.small_world.engine.tree import TreeShape
    from examples.small_world.plans import TracePlan

    about = trace.about
    tree = TreeShape(depth=about.depth, topk=about.topk, nodes=about.nodes)
    prompt = TracePlan.prompt_tokens
    session = TraceSession(folder, tree, prompt, about.reference_us)
    engine = session.prose_engine(1, ROUNDS * len(WIDTHS))
    shuffled = np.random.default_rng(0)
    times = {width: list[float]() for width in WIDTHS}
    references_us = []
    for _ in range(ROUNDS):
        references_us.append(session.reference.time_reference())
        for width in shuffled.permutation(WIDTHS).tolist():
            with torch.inference_mode():
                step = engine.step(Fixed("", about.depth, width), drafts_later=True)
            times[width].append(step.times.verify.us)
    speed = about.reference_us / float(np.median(references_us))
    for width, own in times.items():
        low, middle, high = speed * np.quantile(own[1:], (0.25, 0.5, 0.75))
        yield Verification(world, width, *(round(us, 1) for us in (middle, low, high)))


def table_of(found: Sequence[Verification], trace: Trace) -> CostTable:
    """C(n) between the measured widths, calibrated on `trace`."""
    base, name = CostTable.load(XEON), workload_name(trace)
    curve = ActivationCurve(name, True, (0.0, *[1.0] * base.axes.max_tokens))
    drafting = Drafting.at_speed(trace.clocks, name, trace.about.engine, 1.0)
    acceptance = as_acceptance(calibrate(trace), name, len(trace))
    fit = changed(base.fit, layers=_terms(found), layer_scale=1.0, non_moe=())
    table = changed(base, fit=fit, reuse=())
    return with_workload(table, acceptance, curve, drafting)


def _terms(found: Sequence[Verification]) -> tuple[TermCost, ...]:
    """A hinge between two widths each; a time that falls with width is noise."""
    width = [float(each.width) for each in found]
    us = np.maximum.accumulate([each.verify_us for each in found])
    slopes = (np.diff(us) / np.diff(width)).tolist()
    rising = zip(width[:-1], width[1:], slopes, strict=True)
    return (
        TermCost("one", 0.0, None, float(us[0])),
        *(TermCost("tokens", low, high, slope) for low, high, slope in rising),
    )


def claims(world: str, trace: Trace, found: Sequence[Verification]) -> Iterator[Row]:
    """The rule over EVICT's tree and the tree over plain decoding, at batch 1."""
    both = World(replace(trace, routes=None), CostTable.load(XEON))
    table = table_of(found, both.of(half=0))
    judged = Judged(
        both.replay(MIXED, 1, table=table, depth=EVICT_DEPTH, nodes=EVICT_NODES)
    )
    on = f"mixed, T=0, batch 1, {world}"
    paper = {"dense": "+8 %, Hunyuan-7B [N]", "MoE": "+15 to +25 % [N], +21 % [A]"}
    for name, own in (("raw", raw(table)), ("calibrated", table)):
        shown = percent(judged.over(rule(own)))
        yield Row("speed over the tree", paper[world], shown, f"{on}, {name}")
    plain = judged.replay.sums(plain_decoding)
    over = judged.replay.bootstrap.ratio(
        tokens_per_s(judged.whole) / tokens_per_s(plain)
    )
    yield Row("the tree over plain decoding", "not stated", plainly(over), on)

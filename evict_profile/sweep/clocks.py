"""What a step takes beside its forward, asked of a runner that can draft.

The cells of a sweep time verification alone. A runner that opened with `"clocks": true`
also times drafting and the rest of a step, once for each batch of the grid, after the
last cell or when the time is up: with them a table prices whole steps.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from evict_profile.records import parse
from evict_profile.sweep.client import Runner, RunnerRefusal

STEPS = 24
"""Steps whose median a clock is."""


@dataclass(frozen=True)
class Clock:
    """Times beside verification, in microseconds, as a runner answered.

    Attributes:
        draft_us: time to draft to depth d, cumulative; d = 0..deepest, 0 at d = 0.
        fixed_us: the rest of a step of tree decoding.
        plain_fixed_us: the rest of a step of plain decoding.
        reference_us: the reference work meanwhile, as in `cells.Sample`; None without.
    """

    batch: int
    draft_us: tuple[float, ...]
    fixed_us: float
    plain_fixed_us: float
    reference_us: float | None = None


def take_clocks(
    runner: Runner,
    batches: Collection[int],
    taken: Collection[int],
    say: Callable[[str], None],
) -> Iterator[Clock]:
    """Ask for each batch that has no clock; a refusal is said once, and ends it."""
    for batch in sorted(set(batches) - set(taken)):
        try:
            answer = runner.ask({"do": "clock", "batch": batch, "steps": STEPS})
        except RunnerRefusal as refusal:
            say(f"no clocks of drafting: {refusal}")
            return
        yield parse(Clock, {"batch": batch, **answer}, "the runner's clock")

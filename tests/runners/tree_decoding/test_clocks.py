"""Which of two clocks a time is told by."""

import torch

from runners.tree_decoding.clocks import Moment, StepTimes, now


def test_cpu_time_counts_on_a_cpu() -> None:
    """A neighbour adds to wall time alone."""
    assert Moment(3.0, 8.0).us == 3.0
    assert not now(torch.device("cpu")).on_gpu


def test_wall_time_counts_on_a_gpu() -> None:
    """Whose work the process's clock does not see."""
    assert Moment(3.0, 8.0, on_gpu=True).us == 8.0


def test_sums_stay_on_their_device() -> None:
    """Parts of a step are told by the same clock as the step."""
    level, verify, step = (
        Moment(cpu, wall, on_gpu=True)
        for cpu, wall in ((1.0, 2.0), (1.0, 5.0), (4.0, 9.0))
    )
    times = StepTimes((level,), verify, step)
    assert times.fixed.us == 2.0
    assert (level + verify).us == 7.0

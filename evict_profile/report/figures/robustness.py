"""What a wrong table costs, and how long a step's benefit tells of the next."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evict_profile.replay.memory import Memory
from evict_profile.replay.mismatch import JUDGED
from evict_profile.replay.study import Misled
from evict_profile.report.html import Markup
from evict_profile.report.plotting import dot, log_axis, percent_y, title_y
from evict_profile.report.style import ACCENT, INK, QUIET, RULE, SECOND, draw

COLOURS = dict(zip(JUDGED, (SECOND, QUIET, ACCENT), strict=True))
OFFSETS = dict(zip(JUDGED, (-0.22, 0.0, 0.22), strict=True))


def losses(misled: Sequence[Misled]) -> Markup:
    """Throughput with each wrong table over that with the right one, by batch."""
    names = list(dict.fromkeys(each.wrong for each in misled[0].found))

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(misled), sharey=True, squeeze=False)[0]
        for axes, here in zip(panels, misled, strict=True):
            _losses(axes, here, names)
        panels[0].set_yticks(range(len(names)), names)
        panels[0].tick_params(axis="y", labelcolor=INK)
        panels[0].invert_yaxis()

    says = "throughput lost by deciding with wrong tables"
    return draw("mismatch", says, paint, 9.6, 1.2 + 0.36 * len(names))


def _losses(axes: Axes, misled: Misled, names: Sequence[str]) -> None:
    for found in misled.found:
        colour = COLOURS[found.policy]
        row = names.index(found.wrong) + OFFSETS[found.policy]
        change = found.over_right
        if change.known:
            ends = [100.0 * (change.low - 1.0), 100.0 * (change.high - 1.0)]
            axes.plot(ends, [row, row], color=colour, linewidth=1.1)
        dot(axes, 100.0 * (change.value - 1.0), row, colour)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.grid(axis="x")
    axes.set_xlabel("change of throughput, %")
    axes.set_title(f"batch {misled.place.batch}")


def memories(memory: Memory) -> Markup:
    """Correlation by lag on the left, throughput by half-life on the right."""

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _correlations(left, memory)
        _half_lives(right, memory)

    says = "correlation of a step's benefit with later ones, and other memories"
    return draw("memory", says, paint, 9.6, 3.6)


def _correlations(axes: Axes, memory: Memory) -> None:
    lags = [lag.steps for lag in memory.lags]
    noise = [lag.noise for lag in memory.lags]
    lower = [-each for each in noise]
    axes.fill_between(lags, lower, noise, color=RULE, linewidth=0)
    axes.plot(lags, [lag.accepted for lag in memory.lags], "o-", color=ACCENT)
    axes.plot(lags, [lag.claimed for lag in memory.lags], "o-", color=SECOND)
    axes.axhline(0.0, color=QUIET, linewidth=0.8)
    said = [("tokens accepted", ACCENT), ("tokens the drafter expected", SECOND)]
    for row, (text, colour) in enumerate(said):
        place = (0.98, 0.96 - 0.07 * row)
        axes.text(
            *place, text, transform=axes.transAxes, color=colour, va="top", ha="right"
        )
    axes.set_xlabel("steps apart")
    title_y(axes, "correlation of two steps of a reply")


def _half_lives(axes: Axes, memory: Memory) -> None:
    steps = [each.steps for each in memory.half_lives]
    for each in memory.half_lives:
        change = each.over_default
        if change.known:
            ends = [change.low - 1.0, change.high - 1.0]
            axes.plot([each.steps] * 2, ends, color=ACCENT, linewidth=1.1)
        dot(axes, each.steps, change.value - 1.0, ACCENT)
    axes.axhline(0.0, color=QUIET, linewidth=0.8)
    log_axis(axes, steps, "half-life of the memory, steps")
    percent_y(axes)
    title_y(axes, "throughput of “rate” against the runtime's memory")

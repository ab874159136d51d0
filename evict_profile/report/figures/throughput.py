"""Policies side by side in one place, and beside every fixed width."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evict_profile.replay.cell import Cell, Standing
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    DEPTH_LINKS,
    GUIDED,
    ORACLE,
    RATE,
)
from evict_profile.report.html import Markup
from evict_profile.report.plotting import End, label_ends, log_axis, shades, title_y
from evict_profile.report.style import ACCENT, INK, QUIET, RULE, SECOND, draw

LINES = (AR, RATE, DEPTH_LINKS, ORACLE)
"""Policies drawn beside the fixed widths, where a place has them."""


def bars(cell: Cell, name: str) -> Markup:
    """Throughput over plain decoding, a bar a policy, with intervals."""
    standings = cell.standings

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for row, standing in enumerate(standings):
            _bar(axes, row, standing)
        axes.axvline(1.0, color=QUIET, linewidth=0.8)
        best = cell.of(BEST_PAIR).over[AR].value
        axes.axvline(best, color=SECOND, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(standings)), [_name(each) for each in standings])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.invert_yaxis()
        axes.set_xlim(left=0.0)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("throughput over plain decoding")

    says = f"throughput of each policy over plain decoding, {cell.place}"
    return draw(name, says, paint, 9.6, 0.9 + 0.32 * len(standings))


def _bar(axes: Axes, row: int, standing: Standing) -> None:
    over = standing.over[AR]
    shade = {ORACLE: RULE, AR: QUIET}.get(standing.policy, SECOND)
    colour = ACCENT if standing.policy in GUIDED else shade
    axes.barh(row, over.value, height=0.55, color=colour)
    end = over.value
    if over.known:
        axes.plot([over.low, over.high], [row, row], color=INK, linewidth=1.3)
        end = over.high
    axes.annotate(
        f"{over.value:.2f}",
        (end, row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        annotation_clip=False,
    )


def _name(standing: Standing) -> str:
    setting = f" ({standing.setting})" if standing.setting else ""
    return f"{standing.policy}{setting}"


def width_curves(cell: Cell, name: str) -> Markup:
    """Tokens a second by fixed width, a line a depth; policies as level lines."""
    depths = sorted({point.depth for point in cell.widths})
    colours = shades(depths)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        ends = []
        for depth in depths:
            points = [point for point in cell.widths if point.depth == depth]
            widths = [point.width for point in points]
            speeds = [point.tokens_per_s for point in points]
            axes.plot(widths, speeds, "o-", color=colours[depth], markersize=3.0)
            label = f"depth {depth}"
            ends.append(End(widths[-1], speeds[-1], label, colours[depth]))
        shown = [each for each in cell.standings if each.policy in LINES]
        for standing in shown:
            speed = standing.tokens_per_s.value
            sides = [cell.widths[0].width, cell.widths[-1].width]
            axes.plot(sides, [speed, speed], color=INK, linewidth=0.9, linestyle="--")
            ends.append(End(sides[1], speed, standing.policy, INK))
        log_axis(axes, (point.width for point in cell.widths), "tokens verified, n")
        axes.set_ylim(bottom=0.0)
        label_ends(axes, ends)
        title_y(axes, "tokens a second, of the whole batch")

    says = f"tokens a second by fixed width, {cell.place}"
    return draw(name, says, paint, 9.6, 4.0)

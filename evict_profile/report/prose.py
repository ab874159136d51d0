"""What the numbers mean, in sentences. Plain text: the page escapes it."""

import math

from evict_profile.report.findings import Bandwidth, Dip, Ratio, SplitRatio
from evict_profile.report.view import Unit, View, unit_for
from evict_profile.stats import ErrorSummary

MOST_CARDS = 6
PART_NAMES = {"verify": "verification", "draft": "drafting"}


def title(view: View) -> str:
    """Which model on which device."""
    return f"What verification costs: {view.table.key.model} on {view.table.key.gpu}"


def subtitle(view: View) -> str:
    """Engine, kernels and version of the table."""
    key = view.table.key
    return (
        f"{key.engine} {key.engine_version}, {key.dtype}, tensor parallel {key.tp}, "
        f"expert parallel {key.ep}, attention {key.attention_backend}, experts "
        f"{key.moe_backend}, {key.graph_mode} mode. Cost table {view.table.version}."
    )


def told_ratios(ratios: tuple[Ratio, ...]) -> tuple[Ratio, ...]:
    """A few widths for the headline: the largest, and halves of it or near them."""
    rest = ratios[1:]
    step = -(-len(rest) // MOST_CARDS)
    return rest[::-1][:: max(1, step)][::-1]


def base_name(view: View) -> str:
    """What the ratios are over: "one token" where that was measured."""
    first = view.ratios[0].width
    return "one token" if first == 1 else f"{first} tokens"


def headline(view: View) -> str:
    """The widest verification against one token, in one sentence."""
    widest = view.ratios[-1]
    share = widest.times * view.ratios[0].width / widest.width
    return (
        f"Verifying {widest.width} tokens costs {times(widest.times)} as much as "
        f"verifying {base_name(view)} (90 % interval {times(widest.times_low)} to "
        f"{times(widest.times_high)}), so a token costs {share:.2f} of what it costs "
        f"alone, at {view.place}."
    )


def headline_basis(view: View) -> str:
    """What the headline assumes."""
    growth = view.table.union_growth
    basis = (
        "These steps assume that every token draws its experts uniformly, which is a "
        "guess that overestimates the union: real text mostly "
        "wakes fewer, and a step then costs less."
        if growth.is_guess
        else f"Unions follow the workload {growth.workload}."
    )
    return f"{basis} {includes(view)}"


def includes(view: View) -> str:
    """Which parts of a step are priced."""
    parts = {part for stairs in view.table.staircases for part in stairs.includes}
    left_out = "" if "draft" in parts else "; drafting is not in it"
    named = " and ".join(PART_NAMES.get(part, part) for part in sorted(parts))
    return f"A step is the whole model's {named}{left_out}."


def second_axis(view: View) -> str:
    """What the union axis bought."""
    held_out = view.table.fit.held_out
    blind, ours = held_out["tokens only"].median, held_out["ours"].median
    return (
        f"What the union axis bought: on cells that the fit had not seen, the best "
        f"curve that knows only the tokens errs by a median of {blind:.1%}; with the "
        f"union it errs by {ours:.1%}."
    )


def comparison(view: View) -> str:
    """What each addition to the cost model buys."""
    held_out = view.table.fit.held_out
    return (
        f"The median held-out error is {held_out['tokens only'].median:.1%} for the "
        f"best curve in the tokens alone, {held_out['affine'].median:.1%} with the "
        f"union as a second axis and one slope each, and {held_out['ours'].median:.1%} "
        "where slopes may bend, as in this table."
    )


def gates(view: View) -> str:
    """How many gates passed."""
    own = view.table.gates
    failed = [gate.name for gate in own if not gate.passed]
    if not failed:
        return f"All {len(own)} export gates passed."
    return f"{len(failed)} of {len(own)} export gates failed: {', '.join(failed)}."


def surface(view: View) -> str:
    """The same tokens at the smallest and the largest union."""
    width = view.widths[-1]
    cells = sorted(c for c in view.forced_here if c.width == width)
    few, many = (view.intervals[c].median for c in (cells[0], cells[-1]))
    return (
        f"The same {width} tokens take {view.unit.of(few)} when they share "
        f"{cells[0].union} experts and {view.unit.of(many)} when they wake "
        f"{cells[-1].union}: {times(many / few)} as long, with no token more."
    )


def natural(view: View) -> str:
    """How well the price holds where the router chose."""
    error = view.table.fit.natural
    if error is None:
        return "Natural routing was not measured."
    return (
        f"Where the router chose the experts itself, the price at the union observed "
        f"misses the measurement by {summary(error)}."
    )


def staircase(view: View) -> str:
    """What a staircase is, and over what."""
    fit = view.table.fit
    scaled = (
        ""
        if fit.layer_scale == 1.0
        else f"; the layers measured count {fit.layer_scale:g} times"
    )
    return (
        f"This is what a runtime reads. {includes(view)} At each t the union is "
        f"read from the table's growth curve{scaled}."
    )


def residuals(view: View) -> str:
    """The held-out error of our fit."""
    return f"On cells it had not seen, the fit errs by {_ours(view)}."


def bandwidth(view: View, found: tuple[Bandwidth, ...], width: int) -> str:
    """Slope in U at one width, as a bandwidth beside the measured copy."""
    copy = view.table.provenance.bandwidth_gbps
    at = next((b for b in found if b.width == width), None)
    if at is None:
        return f"At n={width} the fitted cost does not rise with the union."
    return (
        f"At n={width}, each expert beyond {at.small_union} adds "
        f"{unit_for(at.us_per_expert).of(at.us_per_expert)} a layer. Its weights are "
        f"{view.table.model.bytes_per_expert / 1e6:.1f} MB, so that implies "
        f"{at.gbps:.1f} GB/s (90 % interval {at.gbps_low:.1f} to {at.gbps_high:.1f}), "
        f"{at.gbps / copy:.2f} of the {copy:.1f} GB/s that the device was measured to "
        "copy. A runner that timed anything else than reading experts would "
        "hardly land in the shaded range."
    )


def between(unit: Unit, low: float, high: float) -> str:
    """An interval, or why there is none."""
    if not math.isfinite(high):
        return "fewer than 6 samples"
    return f"{unit.bare(low)} to {unit.bare(high)}"


def dip(found: Dip) -> str:
    """One non-monotone step."""
    unit = unit_for(found.narrow_us.median)
    small, large = found.narrow_us, found.wide_us
    union = f", U={found.wide.union}" if found.wide.union else ""
    return (
        f"n={found.wide.width} was measured {-found.change:.1%} cheaper than "
        f"n={found.narrow.width} ({unit.of(large.median)} "
        f"[{unit.bare(large.low)}, {unit.bare(large.high)}] against "
        f"{unit.of(small.median)} [{unit.bare(small.low)}, {unit.bare(small.high)}], "
        f"95 % intervals) in {_part(found)}{union}, context {found.wide.context:,}, "
        f"batch {found.wide.batch}, {found.wide.split}."
    )


def dips(found: tuple[Dip, ...]) -> str:
    """Whether any step was not monotone."""
    if not found:
        return (
            "No wider cell was measured cheaper than a narrower one at the same "
            "union, context and batch beyond both 95 % intervals."
        )
    return (
        f"{counted(len(found), 'cell')} measured cheaper than a narrower one at the "
        "same union, context and batch, beyond both 95 % intervals. The fit cannot "
        "fall with n, so it lies above them; a kernel that changes with the number "
        "of rows does this, and so does a machine that was disturbed:"
    )


def drift(view: View) -> str:
    """How far the machine moved."""
    made = view.table.provenance
    anchor = view.fitted.anchor
    return (
        f"The anchor ({anchor}) was measured in every round, "
        f"{counted(len(view.anchor_rows), 'time')} in all. From the first third of "
        f"the rounds to the last, latency moved by {made.drift:+.1%} (median over "
        "the cells measured in both, each against itself). Two halves of one cell's "
        f"samples differ by up to {made.aa_floor:.1%} (p95 over cells) when nothing "
        "changes: less than that says nothing."
    )


def events(view: View) -> str:
    """Throttling and stolen time seen in the run."""
    seen = view.timed.loc[view.timed["events"] != "", "events"]
    if seen.empty:
        return "No throttling, clock change or stolen time was reported."
    kinds = ", ".join(sorted(set(seen))[:4])
    return (
        f"Throttling, clock or stolen-time events were reported around "
        f"{counted(len(seen), 'sample')} ({kinds}); triangles mark where they fell."
    )


def nuisance(found: tuple[SplitRatio, ...]) -> str:
    """How much the split matters."""
    if not found:
        return (
            "Not measured: every forced cell shares its tokens evenly among the "
            "experts. Add 'skewed' to grid.split to measure what uneven shares cost."
        )
    ratios = sorted(r.ratio for r in found)
    middle = ratios[len(ratios) // 2]
    return (
        f"With a Zipf split instead of an even one, latency changes by "
        f"{middle - 1:+.1%} in the median of {counted(len(found), 'cell')}, from "
        f"{ratios[0] - 1:+.1%} to {ratios[-1] - 1:+.1%}. The table prices even splits."
    )


def summary(error: ErrorSummary) -> str:
    """Errors in words."""
    return (
        f"a median of {error.median:.1%} (p90 {error.p90:.1%}, at most "
        f"{error.max:.1%}, {counted(error.cells, 'cell')})"
    )


def times(ratio: float) -> str:
    """A ratio in words: "2.4 times"."""
    return f"{short(ratio)} times"


def short(ratio: float) -> str:
    """A ratio in three digits."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 cell", "1,200 cells"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _ours(view: View) -> str:
    return summary(view.table.fit.held_out["ours"])


def _part(found: Dip) -> str:
    return "the ends" if found.wide.part == "ends" else "the layers"

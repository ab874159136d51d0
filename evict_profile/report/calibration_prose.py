"""What a calibration found, in sentences for the page and the terminal."""

from evict_profile.calibrate.calibrators import LEVEL_BY_LEVEL, USABLE
from evict_profile.calibrate.growth import Growths
from evict_profile.calibrate.held_out import BEST, HeldOutErrors
from evict_profile.calibrate.study import Study
from evict_profile.config import ModelSpec
from evict_profile.report.prose import counted
from evict_profile.workload import Drafting

NO_ROUTES = (
    "The trace holds no routes: the table keeps the union growth it had. Trace with an "
    "engine that tells its experts to have it measured."
)
NO_CLOCKS = (
    "The trace holds no clocks: the time of drafting stays unknown to the table."
)
NO_CHECK = (
    "Without both clocks and routes, the table's prices could not be held against this "
    "engine's own times."
)


def calibration(found: Study) -> str:
    """Before and after, on prompts held out."""
    calibrated = found.calibrated
    raw, own = calibrated.errors["raw"], calibrated.errors[calibrated.chosen]
    if calibrated.chosen == "raw":
        return (
            f"Path probabilities are as good as they get: calibration error "
            f"{raw.ece.value:.4f}, and no calibration did better on prompts held out."
        )
    return (
        f"On prompts held out, the calibration error goes from {raw.ece.value:.4f} to "
        f"{own.ece.value:.4f}, and from {raw.best_ece.value:.4f} to "
        f"{own.best_ece.value:.4f} over the best {BEST} nodes of each tree; the Brier "
        f"score from {raw.brier.value:.4f} to {own.brier.value:.4f}. The table holds: "
        f"{calibrated.chosen}."
    )


def restriction(found: Study) -> str:
    """What the calibrators that are no curves by depth add to those."""
    errors = found.calibrated.errors
    others = [name for name in errors if name not in USABLE]
    added = "; ".join(f"{name} {_added(errors[name])}" for name in others)
    return (
        f"Against these curves the others change the Brier score: {added}. "
        f"{_ranking(found)}"
    )


def _ranking(found: Study) -> str:
    """Only level by level the nodes are ranked anew, so that as many commit more."""
    errors = found.calibrated.errors
    own, other = errors[found.calibrated.chosen].tokens, errors[LEVEL_BY_LEVEL].tokens
    told = ", ".join(
        f"{other[width].value:.2f} for {own[width].value:.2f} at {width}"
        for width in own
    )
    return (
        "The table also holds acceptance level by level, for a runtime that knows the "
        "parents of nodes. It ranks them anew; tokens a step by verify width, for "
        f"those of the curves' ranking: {told}."
    )


def _added(errors: HeldOutErrors) -> str:
    excess = errors.excess_brier
    verdict = (
        "better" if excess.high < 0.0 else "worse" if excess.low > 0.0 else "no telling"
    )
    return (
        f"by {excess.value:+.5f} ({excess.low:+.5f} to {excess.high:+.5f}), {verdict}"
    )


def growth(growths: Growths, model: ModelSpec) -> str:
    """Measured over uniform at the whole tree, and how other orders compare."""
    kept = growths.kept[1].union
    tokens = len(kept) - 1
    shares = ", ".join(
        f"{one.union[-1] / model.uniform_union(len(one.union) - 1):.2f} at batch {size}"
        for size, one in growths.kept.items()
    )
    at = min(tokens, 16)
    others = [("random tokens", growths.random)]
    if growths.consecutive:
        others.insert(0, ("consecutive tokens", growths.consecutive))
    told = " and ".join(
        f"{one.union[at]:.1f} by {name}" for name, one in others if len(one.union) > at
    )
    return (
        f"A whole tree of {tokens} tokens wakes {kept[-1]:.1f} experts a layer; whole "
        f"trees wake {shares} of what uniform routing would. The best {at} tokens of "
        f"a tree wake {kept[at]:.1f}" + (f", against {told}." if told else ".")
    )


def continuation(found: Study) -> str:
    """Chances of children by rank."""
    shares = ", ".join(f"{share:.3f}" for share in found.continuation)
    return (
        f"Of an accepted node that was expanded, the children are accepted with "
        f"{shares}, best first: {found.continuation.sum():.2f} in all."
    )


def drafting(times: Drafting) -> str:
    """What the deepest draft and the rest of a step cost."""
    told = "; ".join(
        f"at batch {clock.batch} {clock.draft_us[-1] / 1e3:.2f} ms for "
        f"{counted(len(clock.draft_us) - 1, 'level')} and "
        f"{clock.fixed_us / 1e3:.2f} ms beside (plain decoding "
        f"{clock.plain_fixed_us / 1e3:.2f})"
        for clock in times.batches
    )
    return f"Drafting by {times.engine}: {told}."

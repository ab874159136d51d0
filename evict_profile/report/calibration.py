from rich.console import Console

from evict_profile.calibrate.study import CalibrationStudy
from evict_profile.config import ModelSpec
from evict_profile.drafting import Drafting
from evict_profile.io import say
from evict_profile.report.console import Rows, print_notes, print_rows
from evict_profile.report.numbers import spread
from evict_profile.table import CostTable

SHOWN_TOKENS = 16

ERRORS, EXPERTS = "held-out errors", "experts a layer"
NO_ROUTES = (
    "The trace holds no routes: the table keeps the activation curve it had. Record "
    "with an engine that states its experts to have it measured."
)
NO_CLOCKS = "The trace holds no clocks: the time of drafting stays unknown."
NO_CHECK = (
    "Without both clocks and routes, the table's costs could not be compared with "
    "this engine's own times."
)


def show_calibration(
    console: Console, study: CalibrationStudy, table: CostTable
) -> None:
    say(console, study.name)
    chosen = study.calibrated.chosen
    say(console, f"The table holds {chosen}, and conditional for known parents.")
    for title, content in _sections(study, table.model).items():
        if isinstance(content, Rows):
            print_rows(console, content, title)
        else:
            say(console, content)
    if study.drafting and study.drafting.workload != study.name:
        say(console, f"Drafting: {study.drafting.workload}.")
    print_notes(console, table.caveats)


def _sections(study: CalibrationStudy, model: ModelSpec) -> dict[str, Rows | str]:
    return {
        ERRORS: _error_rows(study),
        "children of an accepted node": _children_rows(study),
        EXPERTS: _union_rows(study, model),
        "drafting": _clock_rows(study.drafting) if study.drafting else NO_CLOCKS,
        "costs in this engine": str(study.costs or NO_CHECK),
    }


def _error_rows(study: CalibrationStudy) -> Rows:
    chosen = study.calibrated.chosen
    return Rows.of(
        study.calibrated.errors.items(),
        {
            "calibrator": lambda item: item[0] + " (chosen)" * (item[0] == chosen),
            "ECE": lambda item: f"{item[1].ece:.4f}",
            "Brier": lambda item: spread(item[1].brier, ".4f"),
            "Brier over chosen": lambda item: spread(item[1].excess_brier, "+.5f"),
        },
    )


def _children_rows(study: CalibrationStudy) -> Rows:
    per_rank = study.calibrated.per_rank
    shares = [f"{share:.3f}" for share in per_rank]
    head = ("rank of the child", *map(str, range(len(shares))), "all")
    return Rows(head, [("accepted", *shares, f"{per_rank.sum():.2f}")])


def _union_rows(study: CalibrationStudy, model: ModelSpec) -> Rows | str:
    head, activations = ("tokens", "how many", EXPERTS), study.activations
    if activations is None:
        return NO_ROUTES
    few = min(SHOWN_TOKENS, len(activations[1].union) - 1)
    rows = [
        (f"whole trees, batch {batch}", len(curve.union) - 1, curve.at(-1))
        for batch, curve in activations.items()
    ]
    rows.append(("best of a tree", few, activations[1].at(few)))
    cells = [
        (name, n, spread(union, ".1f"), f"{union.value / model.uniform_union(n):.2f}")
        for name, n, union in rows
    ]
    return Rows((*head, "of uniform routing"), cells)


def _clock_rows(drafting: Drafting) -> Rows:
    return Rows.of(
        drafting.batches,
        {
            f"{drafting.engine}, batch": lambda clock: clock.batch,
            "levels": lambda clock: len(clock.draft_us) - 1,
            "drafting, ms": lambda clock: f"{clock.draft_us[-1] / 1e3:.2f}",
            "rest of a step, ms": lambda clock: f"{clock.fixed_us / 1e3:.2f}",
            "plain rest, ms": lambda clock: f"{clock.plain_fixed_us / 1e3:.2f}",
        },
    )

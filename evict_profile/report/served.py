"""Steps of a server on a terminal: settings, and predictions calibrated."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from evict_profile.calibrate.probed import ProbedSetting
from evict_profile.calibrate.served import ServedStudy
from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.report.console import Rows, print_rows
from evict_profile.report.numbers import US
from evict_profile.served.probe.record import RoutedExperts


def show_served(console: Console, study: ServedStudy) -> None:
    steps = [
        (run.batch, run.levels, run.width, *(f"{us / 1e3:.2f}" for us in times))
        for run, *times in zip(
            study.runs,
            [run.step_us for run in study.runs],
            study.predicted_us,
            study.explained_us,
            strict=True,
        )
    ]
    head = ("batch", "levels", "verified", "served, ms", "before, ms", "after, ms")
    print_rows(console, Rows(head, steps))
    say(console, study.meaning)


def show_settings(
    console: Console, settings: Sequence[ProbedSetting], as_json: bool = False
) -> None:
    rows = Rows.of(
        settings,
        {
            "server": lambda each: each.server.url,
            "drafts": lambda each: each.speculation,
            "texts": lambda each: each.texts,
            "batch": lambda each: each.batch,
            "runs": lambda each: f"{len(each.runs)}, {len(each.left_out)} left out",
            "step, us": lambda each: US.spread(each.step_us),
            "accepted": lambda each: (
                f"{each.committed:.2f}" if each.states_accepted else "not stated"
            ),
        },
    )
    if as_json:
        say(console, json_of(rows.records))
        return
    print_rows(console, rows)
    for each in settings:
        for why, waves in Counter(each.left_out).items():
            where = f"{each.speculation}, batch {each.batch}"
            say(console, f"{where}: {waves} left out: {why}")


def show_routes(console: Console, found: RoutedExperts, as_json: bool = False) -> None:
    """Experts of a layer that n consecutive tokens of each request activate."""
    several = {f"{b.batch} requests": (b.batch, b.union) for b in found.batches}
    rows = [
        {
            "tokens a request": n,
            "1 request": f"{found.union[n]:.1f} ± {found.half_width[n]:.1f}",
            **{name: f"{union[n * b]:.1f}" for name, (b, union) in several.items()},
        }
        for n in (1, 2, 4, 8, 16, 32)
    ]
    if as_json:
        say(console, json_of(rows))
        return
    print_rows(console, Rows(tuple(rows[0]), [tuple(row.values()) for row in rows]))
    say(console, f"{found.tokens:,} committed tokens of {found.replies} replies")

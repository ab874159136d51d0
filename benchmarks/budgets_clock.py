"""Expert budgets and truncation, alone and together: which wins, by the real clock?

    python benchmarks/budgets_clock.py worlds/stdlib TRACES --table TABLE --prompts 32 \
        --part 2/2 --workload mixed --batch 1 --batch 4 \
        --budget "mass 16" --budget "sqrt-path+top-k 16"

A budget makes a wide verification cheap, because it wakes no more than B experts of a
layer; truncation makes it narrow, and so wakes few of itself. Both save the same reads
of memory, so what they save together is not the sum, and only one of them is lossless.
The real engine decodes the same replies, greedily, with every way to truncate under
every budget, in turns of a few steps in random order (benchmarks/turns.py).

Measured are tokens a second over plain decoding, by CPU time (on a GPU, wall time) and
by wall time, and over the same truncation without a budget; intervals resample turns.
When all is decoded, the target without a budget reads every text, and tells the share
of tokens that it would have chosen there; that interval resamples replies. Without a
budget the share must be 1 up to rounding: if it is not, the engine is wrong, this says
so, and ends with exit code 1.

Budgets are shared by all requests of a batch. Trees that are cut by price have the
prices of their budget (benchmarks/budgeted_contenders.py).
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from benchmarks.agreement import Judge
from benchmarks.budgeted_contenders import Allowance, Entry, allowances, line_up
from benchmarks.budgets_told import (
    DUELS,
    Row,
    effects,
    fastest,
    groups,
    standing,
    table_of,
    unfaithful,
    verdict,
)
from benchmarks.command import command, restart_as_runners_run
from benchmarks.turns import (
    Interval,
    Measured,
    answer_of,
    arguments,
    interval,
    open_trace,
    serve_all,
    workloads,
)
from evict_profile.budgets.settings import NONE
from evict_profile.replay.cell import Place
from evict_profile.replay.policies import AR
from evict_profile.runtime import CostTable
from evict_profile.traces import Trace
from runners.tree_decoding.session import TraceSession

PARTS = ("verify_us", "draft_us", "fixed_us")


class Outcome:
    """What all contenders did in one place."""

    def __init__(
        self, entries: Sequence[Entry], measured: Mapping[str, Measured], judge: Judge
    ) -> None:
        self.measured = {
            (each.cut, each.budget): measured[each.name] for each in entries
        }
        self.rows = [self.row(each, judge) for each in entries]

    def row(self, entry: Entry, judge: Judge) -> Row:
        """One contender's numbers."""
        key = (entry.cut, entry.budget)
        own = self.measured[key]
        return Row(
            cut=entry.cut,
            setting=entry.setting,
            budget=entry.budget,
            tokens_per_s=interval(own.tokens_per_s("us")),
            tokens_per_s_wall=interval(own.tokens_per_s("wall_us")),
            over_plain=self.over(key, (AR, NONE)),
            over_plain_wall=self.over(key, (AR, NONE), "wall_us"),
            over_unbudgeted=self.over(key, (entry.cut, NONE)),
            agrees=judge.judge(own.texts),
            parts={name: round(own.mean(name), 1) for name in PARTS},
            decision_us=round(own.decision_us, 1),
            committed=round(own.mean("committed"), 3),
            verified=round(own.mean("verified"), 2),
            levels=round(own.mean("levels"), 2),
            union=round(own.mean("union"), 2),
        )

    def over(
        self, one: tuple[str, str], other: tuple[str, str], clock: str = "us"
    ) -> Interval:
        """Tokens a second of one contender over those of another."""
        above, below = (self.measured[k].tokens_per_s(clock) for k in (one, other))
        return interval(above / below)

    def says(self) -> Iterator[str]:
        """Which wins, in sentences."""
        best = {name: fastest(rows) for name, rows in groups(self.rows).items()}
        yield from (standing(name, row) for name, row in best.items())
        for one, other in DUELS:
            if one in best and other in best:
                keys = [(best[n].cut, best[n].budget) for n in (one, other)]
                yield verdict(one, other, self.over(keys[0], keys[1]))
        yield from effects(self.rows)


def run_place(
    session: TraceSession,
    part: Trace,
    table: CostTable,
    place: Place,
    allowed: Sequence[Allowance],
    prompts: int,
) -> Outcome:
    """Line up, decode, judge."""
    entries = list(line_up(part, table, place, allowed))
    tokens = [reply.tokens for reply in part.replies]
    print(f"{place}: {len(entries)} contenders decode {sum(tokens)} tokens", flush=True)
    contenders = {each.name: each.contender for each in entries}
    measured = serve_all(session, part, contenders, prompts, place.batch)
    return Outcome(entries, measured, Judge(session, max(tokens)))


def show(place: Place, outcome: Outcome) -> None:
    """Print one place."""
    print(f"\n{place}\n")
    print("\n".join(table_of(outcome.rows)))
    print("\n" + "\n".join([*outcome.says(), *unfaithful(outcome.rows)]), flush=True)


@command
def main(words: Sequence[str]) -> int:
    """Compare in every place; print, and write all numbers as JSON."""
    parser = arguments(__doc__, "budgets_clock.json")
    parser.add_argument(
        "--budget", action="append", default=[], help='such as "mass 16"; repeatable'
    )
    asked = parser.parse_args(words)
    outcomes = list(compare(asked))
    return int(any(unfaithful(outcome.rows) for outcome in outcomes))


def compare(asked: argparse.Namespace) -> Iterator[Outcome]:
    """Every place that is asked for; what is done is printed and kept in a file beside,
    which takes its name when all is done."""
    answer, table = answer_of(asked), CostTable.load(asked.table)
    trace, session = open_trace(asked)
    allowed = allowances(asked.budget, session)
    found = []
    for part, workload in list(workloads(trace, asked, 0.0)):
        for batch in asked.batch or [1]:
            place = Place(workload, 0.0, batch)
            outcome = run_place(session, part, table, place, allowed, asked.prompts)
            show(place, outcome)
            found.append(as_json(place, outcome))
            answer.keep(found)
            yield outcome
    answer.write(found)


def as_json(place: Place, outcome: Outcome) -> dict[str, object]:
    """All numbers of one place."""
    rows = [asdict(row) for row in outcome.rows]
    says = [*outcome.says(), *unfaithful(outcome.rows)]
    return {"place": asdict(place), "rows": rows, "says": says}


if __name__ == "__main__":
    restart_as_runners_run()
    sys.exit(main(sys.argv[1:]))

"""Records a plan into a folder of parts, one Parquet file a reply.

Each part is written in one move and says what it is a part of. So Ctrl-C, a crash or a
full disk costs one reply at most, and the same command records the parts that lack.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress

from evict_profile.deadline import Deadline, interruptible
from evict_profile.drafting import DraftClock
from evict_profile.errors import DataError, Interrupted
from evict_profile.io import check_outputs, make_folder, say, sole_writer
from evict_profile.progress import ProgressBar
from evict_profile.records import Facts, differences
from evict_profile.run_folder import write_table
from evict_profile.traces.schema import COLUMNS, Metadata, mark, metadata_of, read
from examples.small_world.engine.limits import check_fits
from examples.small_world.engine.session import TraceSession
from examples.small_world.plans import TracePlan


def record(plan: TracePlan, world: Path, out: Path, console: Console) -> None:
    """Record a plan into a folder, or the rest of it."""
    check_outputs([out / "00000.parquet"], [world])
    make_folder(out)
    try:
        with sole_writer(out):
            stored = _stored(out)
            reference_us = stored.about.reference_us if stored else 0.0
            session = TraceSession(world, plan.tree, plan.prompt_tokens, reference_us)
            plan = plan.within(session)
            check_fits(session.checkpoint, plan.tree, plan.tokens)
            with interruptible(Deadline()) as deadline:
                _record(plan, session, stored, out, deadline, console)
    finally:
        with suppress(OSError):  # A folder that holds anything stays.
            out.rmdir()
    say(console, f"recording: {out} ({len(list(plan.replies()))} replies)")


def _record(
    plan: TracePlan,
    session: TraceSession,
    stored: Metadata | None,
    out: Path,
    deadline: Deadline,
    console: Console,
) -> None:
    """Take clocks, which takes seconds, and record each reply that lacks."""
    about, replies = session.about, list(plan.replies())
    # As JSON gives it back.
    facts: Facts = json.loads(json.dumps({**asdict(about), **asdict(plan)}))
    parts = {reply: out / f"{i:05d}.parquet" for i, reply in enumerate(replies)}
    if stored and (apart := differences(facts, stored.recorded)):
        raise DataError(
            f"{out}: holds replies that cannot be continued here "
            f"({'; '.join(apart)}); choose another --out"
        )
    clocks = list[DraftClock](stored.clocks if stored else ())
    for batch in () if stored else plan.batches:
        clocks.append(session.clock(batch))
        if deadline.reached():
            raise Interrupted("interrupted before the first reply; nothing is kept")
    todo = [reply for reply, part in parts.items() if not part.exists()]
    if stored and todo:
        say(console, f"continuing {out}")
    found = Metadata(about, tuple(clocks), facts, len(parts))
    # Lines and no bar, whose thread takes CPU time, which is what is measured.
    shown = ProgressBar(Progress(console=console, disable=True))
    for left, reply in zip(range(len(todo))[::-1], todo, strict=True):
        steps = session.trace(reply, plan.prompts, plan.tokens)
        rows = [{**asdict(reply), **step} for step in steps]
        table = pa.Table.from_pylist(rows, schema=COLUMNS)
        write_table(mark(table, found), parts[reply])
        done = len(parts) - left
        shown.show(f"{done} of {len(parts)} replies ({reply})", done, left)
        if deadline.reached():
            raise Interrupted(
                f"interrupted; {out} is kept, the same command continues it"
            )


def _stored(out: Path) -> Metadata | None:
    """What the parts that are there say of the recording; None without any."""
    first = min(out.glob("*.parquet"), default=None)
    if first is None:
        return None
    found = metadata_of(read(first), str(first))
    if not found.recorded:
        raise DataError(
            f"{out}: is a trace that this command has not recorded; choose another "
            "--out"
        )
    return found

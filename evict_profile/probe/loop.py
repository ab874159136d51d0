"""Waves at several batches, in turns, until the time is up.

Every round visits each batch once, in an order drawn anew, so that a machine that slows
down slows all of them. K is set when a server starts; servers of several K take turns
only if each is probed for a while, again and again, into the same file.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evict_profile.deadline import Deadline, interruptible
from evict_profile.errors import ConfigError, Interrupted
from evict_profile.probe.record import Block, Probed, add, begin, odd
from evict_profile.probe.server import About, Broken, Server
from evict_profile.probe.wave import Wave, wave
from evict_profile.progress import ProgressBar
from evict_profile.records import differences, to_mapping

TEXTS = (
    Path(__file__).with_name("prompts.txt").read_text(encoding="utf-8").split("\n\n")
)
TRIES, PAUSE_S = 3, 2.0
"""Of a wave whose connections broke, or of a first one that is odd."""


@dataclass(frozen=True)
class Plan:
    """What to probe a server with; `drafts` is K where the server does not state it,
    and `model` one of those that it serves."""

    batches: Sequence[int]
    minutes: float
    drafts: int | None
    raw: bool
    model: str | None = None


async def probe(server: Server, path: Path, plan: Plan, bar: ProgressBar) -> None:
    """Warm a server up, then probe it until it was probed for so many minutes."""
    if running := await server.running():
        raise ConfigError(
            f"{server.url}: runs {running} requests of others; probe it when it is idle"
        )
    model = await server.model(plan.model)
    if plan.drafts is None:  # Whatever states no K is refused before it is warmed up.
        await server.about(plan.model, None)
    warm = dict[int, Wave]()
    for batch in plan.batches:
        bar.say(f"warming up at batch {batch}")
        for _ in range(TRIES):
            warm[batch] = await _wave(server, model, batch, plan.raw, number=0)
            if warm[batch].tokens_per_s:
                break
    about = await server.about(plan.model, plan.drafts)
    for batch, found in warm.items():
        if why := odd(about, found):
            raise ConfigError(f"{server.url}: at batch {batch} {why}")
    done = begin(path, Probed(about, "raw" if plan.raw else "chat"))
    spent_s, limit_s = sum(each.took_s for each in done), 60.0 * plan.minutes
    number = max((each.round for each in done), default=0)
    if spent_s >= limit_s:
        raise ConfigError(
            f"{path}: {spent_s / 60.0:.2f} minutes of this server are in it, so that "
            f"--minutes {plan.minutes:g} leaves none to measure; give more"
        )
    with interruptible(Deadline()) as deadline:
        while spent_s < limit_s:
            number += 1
            for batch in random.Random(number).sample(plan.batches, len(plan.batches)):
                block = await _block(server, model, batch, plan.raw, number)
                add(path, block)
                spent_s += block.took_s
                text = f"{about.speculation}, round {number}, batch {batch}"
                bar.show(text, int(spent_s), max(int(limit_s - spent_s), 0))
                if deadline.reached():
                    raise Interrupted(
                        f"interrupted; {path} is kept, the same command continues it"
                    )
            _check_same(about, await server.about(plan.model, plan.drafts))


async def _block(
    server: Server, model: str, batch: int, raw: bool, number: int
) -> Block:
    others, at = await server.running(), time.time()
    found = await _wave(server, model, batch, raw, number)
    took_s = round(time.time() - at, 3)
    return Block(
        number, batch, found.tokens_per_s, found.accepted, found.context, others,
        round(at, 3), took_s, found.drafted,
    )  # fmt: skip


async def _wave(server: Server, model: str, batch: int, raw: bool, number: int) -> Wave:
    """One wave of texts that no cache knows; a broken one is tried again."""
    first = random.Random(f"{number} {batch}").randrange(len(TEXTS))
    texts = (TEXTS[(first + each) % len(TEXTS)].strip() for each in range(batch))
    prompts = [f"{number}.{each} {text}" for each, text in enumerate(texts)]
    for left in reversed(range(TRIES)):
        try:
            return await wave(server, model, prompts, raw)
        except Broken:
            if not left:
                raise
            await asyncio.sleep(PAUSE_S)
    raise AssertionError


def _check_same(before: About, now: About) -> None:
    known, sides = (to_mapping(now), to_mapping(before)), ("now", "before")
    if changed := differences(*known, sides=sides):
        raise ConfigError(
            f"{before.url}: the server changed while it was probed "
            f"({'; '.join(changed)}); what was probed is kept, run the same command "
            "again"
        )

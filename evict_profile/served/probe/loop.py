"""Probes a server with waves of several batch sizes until the time is up.

A round has one wave of each batch size in random order, against drift. To compare
several K, which a server fixes at its start, probe each in turn into one file.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from evict_profile.deadline import Deadline, interruptible
from evict_profile.errors import ConfigError, Interrupted
from evict_profile.io import regular
from evict_profile.progress import ProgressBar
from evict_profile.records import differences, to_mapping
from evict_profile.served.probe.record import Probed, Wave, append, resume, step_fault
from evict_profile.served.probe.server import ConnectionLost, Server, ServerInfo
from evict_profile.served.probe.wave import Rates, RequestForm, decode

TEXTS = Path(__file__).with_name("prompts.txt")
TRIES, PAUSE_S = 3, 2.0
"""Tries of a wave whose connections broke, or of a first wave with a fault."""

SETTLE_S, ASK_AGAIN_S = 3.0, 0.05
"""SGLang's count of running requests lags by up to a second behind its last reply."""


@dataclass(frozen=True)
class ProbeConfig:
    """How to probe a server.

    Attributes:
        drafts: K, where the server does not state it.
        raw: send plain prompts, without a chat template.
        model: one of the server's; None where it has one.
        prompts: a file of texts, apart by empty lines; None for the package's.
    """

    batches: Sequence[int]
    minutes: float
    drafts: int | None
    raw: bool
    model: str | None = None
    prompts: Path | None = None

    @property
    def workload(self) -> str:
        kind = "raw" if self.raw else "chat"
        return f"{kind} of {self.prompts.name}" if self.prompts else kind

    @cached_property
    def texts(self) -> list[str]:
        path = self.prompts or TEXTS
        try:
            whole = regular(path).read_text(encoding="utf-8").split("\n\n")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path}: cannot be read: {error}; give a file of texts"
            ) from error
        if texts := [text.strip() for text in whole if text.strip()]:
            return texts
        raise ConfigError(f"{path}: holds no text; give texts apart by empty lines")


async def probe(
    server: Server, path: Path, config: ProbeConfig, bar: ProgressBar
) -> None:
    """Warm a server up, and append waves to a file until it holds `minutes` of them."""
    if running := await _running(server):
        raise ConfigError(
            f"{server.url}: runs {running} requests of others; probe it when it is idle"
        )
    model, (engine, *_) = await server.model(config.model), await server.engine()
    if config.drafts is None:  # A server that states no K is refused before a warm-up.
        await server.info(config.model, None)
    form = RequestForm(engine, model, config.raw)
    info = await _warm_up(server, form, config, bar)
    done = resume(path, Probed(info, config.workload))
    spent_s, limit_s = sum(each.took_s for each in done), 60.0 * config.minutes
    number = max((each.round for each in done), default=0)
    if spent_s >= limit_s:
        raise ConfigError(
            f"{path}: {spent_s / 60.0:.2f} minutes of this server are in it, so that "
            f"--minutes {config.minutes:g} leaves none to measure; give more"
        )
    batches = config.batches
    with interruptible(Deadline()) as deadline:
        while spent_s < limit_s:
            number += 1
            for batch in random.Random(number).sample(batches, len(batches)):
                prompts = prompts_of(config.texts, number, batch)
                wave = await _wave(server, form, prompts, number)
                append(path, wave)
                spent_s += wave.took_s
                text = f"{info.speculation}, round {number}, batch {batch}"
                bar.show(text, int(spent_s), max(int(limit_s - spent_s), 0))
                if deadline.reached():
                    raise Interrupted(
                        f"interrupted; {path} is kept, the same command continues it"
                    )
            _check_same(info, await server.info(config.model, config.drafts))


async def _warm_up(
    server: Server, form: RequestForm, config: ProbeConfig, bar: ProgressBar
) -> ServerInfo:
    """Decode a wave of each batch size, and check that each shows a step."""
    warm = dict[int, Rates]()
    for batch in config.batches:
        bar.say(f"warming up at batch {batch}")
        for _ in range(TRIES):
            prompts = prompts_of(config.texts, 0, batch)
            warm[batch] = await _rates(server, form, prompts)
            if warm[batch].tokens_per_s:
                break
    info = await server.info(config.model, config.drafts)
    for batch, rates in warm.items():
        if fault := step_fault(info, rates):
            raise ConfigError(f"{server.url}: at batch {batch} {fault}")
    return info


async def _wave(
    server: Server, form: RequestForm, prompts: Sequence[str], number: int
) -> Wave:
    others, at = await _running(server), time.time()
    found = await _rates(server, form, prompts)
    took_s = round(time.time() - at, 3)
    return Wave(
        number, len(prompts), found.tokens_per_s, found.accepted, found.context, others,
        round(at, 3), took_s, found.drafted,
    )  # fmt: skip


async def _running(server: Server) -> int:
    """Requests that run and do not end soon."""
    begun = time.monotonic()
    while running := await server.running():
        if time.monotonic() > begun + SETTLE_S:
            break
        await asyncio.sleep(ASK_AGAIN_S)
    return running


def prompts_of(texts: Sequence[str], number: int, batch: int) -> list[str]:
    """Prompts of round `number` that no cache holds."""
    first = random.Random(f"{number} {batch}").randrange(len(texts))
    chosen = (texts[(first + each) % len(texts)] for each in range(batch))
    return [f"{number}.{each} {text}" for each, text in enumerate(chosen)]


async def _rates(server: Server, form: RequestForm, prompts: Sequence[str]) -> Rates:
    """Decode prompts; retry if a connection breaks."""
    for left in reversed(range(TRIES)):
        try:
            return await decode(server, form, prompts)
        except ConnectionLost:
            if not left:
                raise
            await asyncio.sleep(PAUSE_S)
    raise AssertionError


def _check_same(before: ServerInfo, now: ServerInfo) -> None:
    known, sides = (to_mapping(now), to_mapping(before)), ("now", "before")
    if changed := differences(*known, sides=sides):
        raise ConfigError(
            f"{before.url}: the server changed while it was probed "
            f"({'; '.join(changed)}); what was probed is kept, run the same command "
            "again"
        )

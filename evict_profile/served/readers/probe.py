"""The waves of `evict-profile probe`, and which of them are left out.

A wave is left out if it ran beside others' requests, if its round's smallest batch was
more than 10 % slower than its median, or if it drafted otherwise than the others of its
batch. A server may draft another K at another batch.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.served.probe.record import (
    Probed,
    Wave,
    drafted_of,
    near,
    read_probe,
    step_fault,
)
from evict_profile.served.probe.server import ServerInfo
from evict_profile.served.readers import facts
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.run import Load, Run

SLOW = 1.1
"""Step of a round over the median step, beyond which the round is left out."""

BUSY = "requests of others ran beside it; probe the server when it is idle"
SLOWED = "its round was slow; let nothing else use the machine"
ADAPTIVE = "the server changes K while it runs; start it with one K"


def read(path: Path, text: str, given: int | None) -> FileRuns:
    if given is not None:
        raise ConfigError(f"{path}: a probe states K; give the file without =K")
    runs, left_out = list[Run](), dict[str, str]()
    for number, (probed, waves) in enumerate(read_probe(path), 1):
        about, slow = probed.server, _slow_rounds(probed.server, waves)
        for batch in sorted({wave.batch for wave in waves}):
            own = [wave for wave in waves if wave.batch == batch]
            k, whys = _drafted(about, own), list[str]()
            for n, wave in enumerate(own, 1):
                source = f"{path}, server {number}, batch {batch}, wave {n}"
                if why := _why(about, k, wave, slow):
                    left_out[source] = why
                    whys.append(why)
                else:
                    runs.append(_run(source, probed, wave, k))
            _check(about, batch, own, whys)
    return FileRuns(runs, left_out)


def _check(
    about: ServerInfo, batch: int, waves: Sequence[Wave], whys: Sequence[str]
) -> None:
    """Refuse a batch whose waves show no step."""
    faulty = sum(bool(step_fault(about, wave)) for wave in waves)
    if 2 * faulty > len(waves) or (len(whys) == len(waves) and ADAPTIVE not in whys):
        raise ConfigError(
            f"{about.url}: {len(whys)} of {len(waves)} waves at batch {batch} "
            f"show no step: {max(set(whys), key=whys.count)}"
        )


def _drafted(about: ServerInfo, waves: Sequence[Wave]) -> float:
    """Tokens drafted a step, a median; the server's K if they are near it."""
    whole = [wave for wave in waves if not step_fault(about, wave)]
    median = float(np.median([drafted_of(about, w) for w in whole] or [about.drafts]))
    return about.drafts if near(median, about.drafts) else median


def _why(about: ServerInfo, k: float, wave: Wave, slow: set[int]) -> str:
    """Why a wave is left out; "" if it is not."""
    if fault := step_fault(about, wave):
        return fault
    if about.adaptive:
        return ADAPTIVE
    drafted = drafted_of(about, wave)
    if near(k, round(k)) and not near(drafted, round(k)):
        return f"{drafted:.2f} tokens were drafted a step, and {round(k)} usually"
    return BUSY if wave.others else SLOWED if wave.round in slow else ""


def _slow_rounds(about: ServerInfo, waves: Sequence[Wave]) -> set[int]:
    """Rounds whose smallest batch was slow."""
    whole = [wave for wave in waves if not step_fault(about, wave)]
    least = min((each.batch for each in waves), default=0)
    rates = {each.round: _step_us(each) for each in whole if each.batch == least}
    limit = SLOW * float(np.median(list(rates.values()))) if rates else np.inf
    return {number for number, step in rates.items() if step > limit}


def _step_us(wave: Wave) -> float:
    return 1e6 * (wave.accepted or 1.0) * wave.batch / wave.tokens_per_s


def _run(source: str, probed: Probed, wave: Wave, k: float) -> Run:
    """A server that drafts another K than it states drafts a chain."""
    about, drafts = probed.server, round(k)
    levels = about.levels if drafts == about.drafts else drafts
    load = Load(at_once=wave.batch, temperature=0.0, waiting=0, prefill=0.0)
    return facts.timed(
        source,
        None,
        _step_us(wave),
        batch=wave.batch,
        drafts=drafts,
        levels=levels,
        topk=about.topk,
        accept_lengths={levels: wave.accepted} if drafts and wave.accepted else {},
        context=wave.context,
        text=probed.text,
        deployment=about.deployment,
        load=replace(load, drafted=k if drafts else None),
    )

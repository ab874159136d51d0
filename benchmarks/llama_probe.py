"""Do probes of two draft lengths predict the steps of others? On real llama-servers.

    python -m examples.small_world.export_gguf examples/small_world/stdlib draft.gguf
    python -m examples.small_world.export_gguf examples/small_world/stdlib large.gguf \
        --dtype BF16 --hidden 768 --width 256
    python benchmarks/llama_probe.py large.gguf draft.gguf

Each setting is a llama-server of its own, on one thread: plain decoding, K of 1 to 8 at
an acceptance that the server makes up, and K = 3 with the draft's own. They are probed
in turns, as `evict-profile probe` does it. A table of the plain setting, the smallest
and the largest K predicts the steps of the others. Exit code 1 where the median error
exceeds `MOST_OFF`.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.common import Answer, command, count
from evict_profile.calibrate.probed import settings
from evict_profile.calibrate.served_table import served_table
from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.progress import progress_bar
from evict_profile.served.probe.loop import ProbeConfig, probe
from evict_profile.served.probe.record import read_probe
from evict_profile.served.probe.server import Server

RATE, PINNED, OWN = 0.7, (1, 2, 3, 4, 5, 6, 8), 3
PROBED = (1, 8)
"""Draft lengths that the table is made of, beside plain decoding."""
MOST_OFF = 0.04


@dataclass(frozen=True)
class Setting:
    """A server: its model, and how it drafts. `rate` 0 keeps the draft's acceptance."""

    model: str
    draft: str = ""
    n_max: int = 0
    rate: float = 0.0

    @property
    def name(self) -> str:
        """As the result lists it."""
        kind = f"accepted {self.rate:g}" if self.rate else "own drafts"
        return f"n_max {self.n_max}, {kind}" if self.n_max else f"plain {self.model}"


def params_of(setting: Setting) -> Any:
    """What xllamacpp starts a llama-server with, on one thread."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = setting.model, 1024, 1
    params.warmup = params.fit_params = False
    params.n_gpu_layers = params.verbosity = params.cache_ram_mib = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if setting.n_max:
        kind = xllamacpp.common_speculative_type
        params.speculative.types = [kind.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max = setting.draft, setting.n_max
        draft.n_min, draft.p_min, draft.backend_sampling = 0, 0.0, False
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = 1
        if setting.rate:
            positions = range(1, setting.n_max + 1)
            params.speculative.synth_rates = [setting.rate**i for i in positions]
    return params


def serve(setting: Setting) -> None:
    """The child: a server that listens, whose address is its first line."""
    import xllamacpp

    params = params_of(setting)
    params.port, params.endpoint_metrics = 0, True
    server = xllamacpp.Server(params)  # It listens as long as somebody holds it.
    print(server.listening_address, flush=True)
    time.sleep(1e6)


@contextmanager
def started(asked: Sequence[Setting]) -> Iterator[list[str]]:
    """Servers of the settings: their URLs."""
    children, urls = list[subprocess.Popen[str]](), list[str]()
    try:
        # One after another: two that look for a free port may find the same.
        for setting in asked:
            words = [sys.executable, __file__, "--serve", json.dumps(asdict(setting))]
            child = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            children.append(child)
            assert child.stdout
            urls.append(child.stdout.readline().strip())
        yield urls
    finally:
        for child in children:
            child.kill()


def probe_in_turns(urls: Sequence[str], files: Sequence[Path], rounds: int) -> None:
    """One wave of each server a round, in an order drawn anew."""
    for number in range(rounds):
        turns = list(zip(urls, files, strict=True))
        for url, file in random.Random(number).sample(turns, len(turns)):
            known = read_probe(file) if file.exists() else []
            spent_s = sum(block.took_s for _, own in known for block in own)
            plan = ProbeConfig((1,), (spent_s + 0.01) / 60.0, None, raw=True)
            with progress_bar(Console(quiet=True)) as bar:
                asyncio.run(probe(Server(url), file, plan, bar))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)


def compared(asked: Sequence[Setting], files: Sequence[Path]) -> list[dict[str, Any]]:
    """Each setting's step, predicted by the probed ones and measured."""
    found = [settings(file)[0] for file in files]
    chosen = [
        each
        for setting, each in zip(asked, found, strict=True)
        if not setting.n_max or (setting.rate and setting.n_max in PROBED)
    ]
    table = served_table(chosen, "cpu", load_model(asked[0].model))
    costs = table.costs(1, table.axes.context[0])
    rows = []
    for setting, each in zip(asked, found, strict=True):
        if each in chosen:
            continue
        clock_us = table.drafting.at(1).overhead_us(1) if table.drafting else 0.0
        us = costs.step_cost_us[setting.n_max + 1] + clock_us
        step = each.step_us
        rows.append(
            {
                "setting": setting.name,
                "accepted": each.committed,
                "waves": len(each.runs),
                "predicted_us": us,
                "measured_us": step.value,
                "low_us": step.low,
                "high_us": step.high,
                "error": us / step.value - 1.0,
            }
        )
    return rows


def show(rows: Sequence[dict[str, Any]]) -> bool:
    """A line a setting, and how far predictions are off: whether too far."""
    for row in rows:
        print(
            "{setting:<24} predicted {predicted_us:,.0f} us, measured "
            "{measured_us:,.0f} ({low_us:,.0f} to {high_us:,.0f}) in {waves} waves, "
            "{error:+.1%}".format(**row)
        )
    errors = np.abs([row["error"] for row in rows])
    print(f"median error {np.median(errors):.1%}, largest {errors.max():.1%}")
    return bool(np.median(errors) > MOST_OFF)


@command
def main(arguments: Sequence[str]) -> int:
    """Probe, predict and compare; 1 where predictions are off too far."""
    if arguments[:1] == ["--serve"]:
        serve(Setting(**json.loads(arguments[1])))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--rounds", type=count, default=24)
    parser.add_argument("--runs", type=Path, default=Path("runs/llama-probe"))
    parser.add_argument("--out", type=Path, default=Path("llama_probe.json"))
    given = parser.parse_args(arguments)
    for file in (given.target, given.draft):
        if not file.is_file():
            raise ConfigError(f"{file}: no such file; write a GGUF there first")
    answer = Answer(given.out, [given.target, given.draft])
    given.runs.mkdir(parents=True, exist_ok=True)
    target, draft = str(given.target), str(given.draft)
    asked = [Setting(target), *(Setting(target, draft, k, RATE) for k in PINNED)]
    asked.append(Setting(target, draft, OWN))
    files = [given.runs / f"{number}.jsonl" for number in range(len(asked))]
    if any(file.exists() for file in files):
        raise ConfigError(f"{given.runs}: holds probes of other servers; give another")
    with started(asked) as urls:
        probe_in_turns(urls, files, given.rounds)
    rows = compared(asked, files)
    answer.write(rows)
    return int(show(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

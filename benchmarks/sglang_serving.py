"""How fast SGLang decodes: plainly, with whole trees, fixed widths, and chosen ones.

    python benchmarks/sglang_serving.py --model qwen3-30b-a3b --sweep sglang \
        --table TABLE.json --python SGLANG_PYTHON --out runs/serving

Decodes a planted world (`sglang_planted.world`): dummy weights, real kernels, real
choice of trees, known acceptance. Each mode is one start of one `sglang.Engine`, which
decodes every batch size several times. Plain decoding runs first and last, which shows
the drift of the machine. The sweep and the table are those of the runner
`sglang_verify`. A mode whose result is in the folder is not run again.

Writes serving.json (so-far.json while a mode is missing): tokens/s, medians over
repeats with their range, and ratios to plain decoding and to whole trees repeat by
repeat. Exit code 1 where a mode failed or decoded another text, and 3 where the chosen
widths are slower than `SLOWEST` times plain decoding or whole trees. On a CPU the
kernels are stubs and times mean nothing.
"""

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.common import command, count
from benchmarks.sglang_planted.engine import Start, digest
from benchmarks.sglang_planted.process import environment_with, run_apart
from benchmarks.sglang_planted.world import PlantedWorld
from evict_profile.config import load_model, load_sweep
from evict_profile.io import check_folder, make_folder, write_json
from evict_profile.records import to_mapping
from evict_profile.table import CostTable
from runners.sglang_verify.models import draft_folder, model_folder
from runners.sglang_verify.options import Options

PLAIN, PLAIN_AGAIN, WHOLE, OURS = "plain", "plain again", "whole tree", "ours"
PLUGINS = {
    "evict_profile": "evict_profile.integrations.sglang.plugin:register",
    "planted_world": "benchmarks.sglang_planted.plugin:register",
}
START_LIMIT_S = 300.0
SLOWEST, SLOWER = 0.95, 3


class Failed(Exception):
    """A mode that gave no result; the sentence says where to look."""


@dataclass(frozen=True)
class Mode:
    """A way of decoding, and its files in the folder of all.

    `capture_sizes` are widths to verify; None for the table's, () for no plug-in.
    """

    name: str
    speculative: bool = True
    capture_sizes: tuple[int, ...] | None = ()

    def environment(self, table: Path) -> dict[str, str]:
        """The settings of the plug-in."""
        if self.capture_sizes == ():
            return {}
        named = {"EVICT_PROFILE_TABLE": str(table)}
        if self.capture_sizes:
            widths = ",".join(map(str, self.capture_sizes))
            named["EVICT_PROFILE_CAPTURE_SIZES"] = widths
        return named

    def result(self, out: Path) -> Path:
        """The file of its result; its log has another suffix."""
        return out / f"{self.name.replace(' ', '-')}.json"

    def log(self, out: Path) -> str:
        """What its engine printed, "" if it never ran."""
        path = self.result(out).with_suffix(".log")
        return path.read_text(errors="replace") if path.exists() else ""


def modes(widths: Sequence[int]) -> list[Mode]:
    """All modes, plain decoding around them."""
    fixed = [Mode(f"width {width}", capture_sizes=(width,)) for width in widths]
    ends = [Mode(name, speculative=False) for name in (PLAIN, PLAIN_AGAIN)]
    return [ends[0], Mode(WHOLE), Mode(OURS, capture_sizes=None), *fixed, ends[1]]


@command
def main(arguments: Sequence[str]) -> int:
    """Run the modes that are missing; 1 while one has failed, `SLOWER` if all ran."""
    asked = parse(arguments)
    out: Path = asked.out.resolve()
    CostTable.load(asked.table)
    check_folder(out)
    whole, world = plan(asked, out)
    failed, begun = {}, time.monotonic()
    wanted = modes(asked.width)
    for mode in wanted:
        try:
            if time.monotonic() - begun > 60.0 * asked.minutes:
                raise Failed("not begun: run the same command again")
            run_mode(mode, whole, world, asked, out)
        except Failed as failure:
            failed[mode.name] = str(failure)
        print(f"{mode.name}: {failed.get(mode.name, 'done')}", flush=True)
    results = {
        mode.name: json.loads(mode.result(out).read_text(encoding="utf-8"))
        for mode in wanted
        if mode.name not in failed
    }
    found = {
        "world": to_mapping(world),
        "start": to_mapping(whole),
        "failed": failed,
        **summary(results, texts(whole, world)),
    }
    write_json(found, out / ("so-far.json" if failed else "serving.json"))
    print(json.dumps({key: found[key] for key in ("device", "ratios", "said_text")}))
    if failed or not found["said_text"]:
        return 1
    return SLOWER if is_slow(found["ratios"]) else 0


def is_slow(ratios: Mapping[str, Mapping[str, Mapping[str, float]]]) -> bool:
    """Whether chosen widths lose to plain decoding or to whole trees."""
    return any(
        found["median"] < SLOWEST
        for name, batches in ratios.items()
        if name.startswith(f"{OURS} / ")
        for found in batches.values()
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", required=True, help="as evict-profile takes it")
    add("--sweep", required=True, help="that made the table")
    add("--table", type=Path, required=True)
    add("--python", default=sys.executable, help="that has SGLang")
    add("--out", type=Path, required=True)
    add("--width", type=count, action="append", help="fixed; repeatable")
    add("--context", type=count, help="of a prompt; the sweep's smallest")
    add("--tokens", type=count, default=256, help="of a reply")
    add("--repeats", type=count, default=5)
    add("--minutes", type=float, default=math.inf, help="then no mode is begun")
    asked = parser.parse_args(arguments)
    asked.width = asked.width or [8, 24]
    return asked


def plan(asked: argparse.Namespace, out: Path) -> tuple[Start, PlantedWorld]:
    """The engine that all modes share, and the world that it decodes."""
    model, sweep = load_model(asked.model), load_sweep(asked.sweep)
    own, shape = Options(**sweep.engine), to_mapping(model)
    make_folder(out)
    target, draft = out / "target", out / "draft"
    if own.model or not target.exists():
        target = model_folder(shape, own.model, out)
    if own.draft or not draft.exists():
        draft = draft_folder(target, own.draft, out)
    start = Start(
        target=str(target),
        draft=str(draft),
        dtype=model.dtype,
        speculative=True,
        width=max(sweep.grid.width),
        steps=own.steps,
        topk=own.topk,
        batches=sweep.grid.batch,
        context=asked.context or min(sweep.grid.context),
        tokens=asked.tokens,
        repeats=asked.repeats,
        attention=own.attention_backend,
        seed=sweep.seed,
    )
    return start, PlantedWorld(model.vocab_size, own.topk, sweep.seed)


def run_mode(
    mode: Mode, whole: Start, world: PlantedWorld, asked: argparse.Namespace, out: Path
) -> None:
    """Start a mode's engine, unless its result is there."""
    result = mode.result(out)
    if result.exists():
        return
    task, partial, log = (result.with_suffix(f".{s}") for s in ("plan", "part", "log"))
    start = to_mapping(whole) | {"speculative": mode.speculative}
    task.write_text(json.dumps(start), encoding="utf-8")
    words = [asked.python, "-m", "benchmarks.sglang_planted.engine"]
    environment = environment_with(out, PLUGINS) | world.as_variable()
    environment |= mode.environment(asked.table.resolve())
    run_apart([*words, str(task), str(partial)], environment, log, START_LIMIT_S)
    if not partial.exists():
        raise Failed(f"no result; see {log}")
    if mode.capture_sizes != () and not was_on(text := mode.log(out)):
        raise Failed(reason_off(text) or f"the plug-in was not loaded; see {log}")
    partial.rename(result)


def reason_off(log: str) -> str | None:
    """Why the plug-in did not take part, as it said."""
    found = re.search(r"evict-profile: (off.*)", log)
    return found[1] if found else None


def was_on(log: str) -> bool:
    """Whether the plug-in took part to the end."""
    return "evict-profile: on" in log and reason_off(log) is None


def texts(start: Start, world: PlantedWorld) -> dict[tuple[int, int], str]:
    """What must be said at each repeat and batch, as a digest."""
    return {
        (repeat, batch): digest(
            [
                world.behind(text, start.context, start.tokens)
                for text in start.texts_of(repeat, batch)
            ]
        )
        for repeat in range(start.repeats)
        for batch in start.batches
    }


def summary(
    results: Mapping[str, Mapping[str, Any]], expected: Mapping[tuple[int, int], str]
) -> dict[str, Any]:
    """Speeds of each mode, and ratios over plain decoding and over whole trees."""
    runs = pd.DataFrame(
        [{"mode": name, **run} for name, r in results.items() for run in r["runs"]],
        columns=["mode", "repeat", "batch", "seconds", "tokens", "steps", "said"],
    )
    said = zip(runs["said"], runs["repeat"], runs["batch"], strict=True)
    seconds = runs.pivot(index=["batch", "repeat"], columns="mode", values="seconds")
    pairs = [(name, PLAIN) for name in results if name != PLAIN]
    pairs += [(name, WHOLE) for name in results if name not in (PLAIN, PLAIN_AGAIN)]
    devices = {f"{r['device']}, SGLang {r['sglang']}" for r in results.values()}
    found: dict[str, Any] = {
        "device": "; ".join(sorted(devices)),
        "said_text": all(
            text == expected[repeat, batch] for text, repeat, batch in said
        ),
        "modes": {name: {"up_s": r["up_s"]} for name, r in results.items()},
        "ratios": {
            f"{name} / {base}": spreads(seconds[base] / seconds[name])
            for name, base in pairs
            if base in results and name != base
        },
    }
    runs["speed"] = runs["tokens"] / runs["seconds"]
    for name, own in runs.groupby("mode"):
        total = own.groupby("batch")[["tokens", "steps"]].sum()
        for batch, spread in spreads(own.set_index("batch")["speed"]).items():
            tokens, steps = total.loc[int(batch.removeprefix("batch "))]
            per_step = round(float(tokens / steps), 3) if steps else 1.0
            found["modes"][name][batch] = {
                "tokens_per_s": spread,
                "tokens_per_step": per_step,
            }
    return found


def spreads(values: pd.Series) -> dict[str, dict[str, float]]:
    """Median and range of values at each batch, the index's first level."""
    found = values.groupby(level="batch").agg(["median", "min", "max"]).round(3)
    found.columns = ["median", "low", "high"]
    return {f"batch {batch}": dict(own) for batch, own in found.iterrows()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

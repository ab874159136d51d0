"""How fast SGLang decodes: plainly, with whole trees, fixed widths, and chosen ones.

    python benchmarks/sglang_serving.py --model qwen3-30b-a3b --sweep sglang \
        --table TABLE.json --python SGLANG_PYTHON --out runs/serving

Decodes a planted world (`sglang_planted.world`): dummy weights, real kernels, real
choice of trees, and an acceptance that is known. Each mode is one start of one
`sglang.Engine`, which decodes every batch size several times over; plain decoding is
started first and last, which shows how far the machine drifted meanwhile. The sweep and
the table are those of the runner `sglang_verify`; trees have the sweep's shape and its
largest width. A mode whose result is in the folder is not run again.

Writes serving.json (so-far.json while a mode is missing): tokens/s, medians over
repeats with their range, ratios to plain decoding and to whole trees repeat by repeat,
what the plug-in said of itself, and whether all modes said the planted text. Times mean
what the device means: on a CPU the kernels are stand-ins, and only that everything
works is seen.
"""

import argparse
import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import amount, command, count
from benchmarks.sglang_planted.engine import Start, digest, texts_of
from benchmarks.sglang_planted.world import World
from evict_profile.config import load_model, load_sweep
from evict_profile.io import check_folder, make_folder, write_json
from evict_profile.records import to_mapping
from evict_profile.table import CostTable
from runners.sglang_verify.models import draft_folder, model_folder

ROOT = Path(__file__).resolve().parent.parent
PLAIN, PLAIN_AGAIN, WHOLE, OURS = "plain", "plain again", "whole tree", "ours"
PLUGINS = {
    "evict_profile": "evict_profile.integrations.sglang.plugin:register",
    "planted_world": "benchmarks.sglang_planted.plugin:register",
}
START_LIMIT_S = 300.0


class Failed(Exception):
    """A mode that gave no result; the sentence says where to look."""


@dataclass(frozen=True)
class Mode:
    """A way of decoding.

    Attributes:
        speculative: whether it drafts.
        ladder: widths that it may verify; None for the table's, () for no plug-in.
    """

    name: str
    speculative: bool = True
    ladder: tuple[int, ...] | None = ()

    def environment(self, table: Path) -> dict[str, str]:
        """What the plug-in is told."""
        if self.ladder == ():
            return {}
        found = {"EVICT_PROFILE_TABLE": str(table)}
        if self.ladder:
            found["EVICT_PROFILE_LADDER"] = ",".join(map(str, self.ladder))
        return found


def modes(widths: Sequence[int]) -> list[Mode]:
    """All modes, plain decoding around them."""
    fixed = [Mode(f"width {width}", ladder=(width,)) for width in widths]
    ends = [Mode(name, speculative=False) for name in (PLAIN, PLAIN_AGAIN)]
    return [ends[0], Mode(WHOLE), Mode(OURS, ladder=None), *fixed, ends[1]]


@command
def main(arguments: Sequence[str]) -> int:
    """Run the modes that are missing; 1 while one has failed."""
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
    results = {m.name: load(out, m) for m in wanted if m.name not in failed}
    found = {"world": to_mapping(world), "start": to_mapping(whole), "failed": failed}
    logs = {m.name: log_of(out, m) for m in wanted}
    found |= summary(results, logs, texts(whole, world))
    name = "so-far.json" if failed else "serving.json"
    write_json(found, out / name)
    print(json.dumps({key: found[key] for key in ("device", "ratios", "said_text")}))
    return 1 if failed or not found["said_text"] else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="as evict-profile takes it")
    parser.add_argument("--sweep", required=True, help="that made the table")
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="that has SGLang")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--width", type=count, action="append", help="fixed; repeatable"
    )
    parser.add_argument(
        "--context", type=count, help="of a prompt; the sweep's smallest"
    )
    parser.add_argument("--tokens", type=count, default=256, help="of a reply")
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument(
        "--minutes", type=amount, default=math.inf, help="after which no mode is begun"
    )
    asked = parser.parse_args(arguments)
    asked.width = asked.width or [8, 24]
    return asked


def plan(asked: argparse.Namespace, out: Path) -> tuple[Start, World]:
    """The engine that all modes share, and the world that it decodes."""
    model, sweep = load_model(asked.model), load_sweep(asked.sweep)
    own, shape = sweep.sglang, to_mapping(model)
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
    return start, World(model.vocab_size, own.topk, sweep.seed)


def run_mode(
    mode: Mode, whole: Start, world: World, asked: argparse.Namespace, out: Path
) -> None:
    """Start a mode's engine, unless its result is there.

    Raises:
        Failed: it did not end, or the plug-in did not take part.
    """
    result = result_of(out, mode)
    if result.exists():
        return
    start = to_mapping(whole) | {"speculative": mode.speculative}
    task = result.with_suffix(".plan")
    task.write_text(json.dumps(start), encoding="utf-8")
    words = [asked.python, "-m", "benchmarks.sglang_planted.engine"]
    environment = surroundings(out) | world.as_variable()
    environment |= mode.environment(asked.table.resolve())
    partial = result.with_suffix(".part")
    log = result.with_suffix(".log")
    run_apart([*words, str(task), str(partial)], environment, log)
    if not partial.exists():
        raise Failed(f"no result; see {log}")
    if mode.ladder != () and not was_on(text := log.read_text(errors="replace")):
        raise Failed(said_off(text) or f"the plug-in was not loaded; see {log}")
    partial.rename(result)


def surroundings(out: Path) -> dict[str, str]:
    """The environment of an engine: both plug-ins, and nothing decided for them."""
    entry = out / "plugins" / "sglang_serving-1.dist-info"
    entry.mkdir(parents=True, exist_ok=True)
    (entry / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang-serving\nVersion: 1\n"
    )
    lines = [f"{name} = {where}" for name, where in PLUGINS.items()]
    (entry / "entry_points.txt").write_text("\n".join(["[sglang.srt.plugins]", *lines]))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EVICT_PROFILE_")}
    path = (str(entry.parent), str(ROOT), kept.get("PYTHONPATH", ""))
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def run_apart(words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Run a command in a group of processes of its own, and leave none of it behind."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            words,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            stream.write(f"\nended after {START_LIMIT_S:.0f} s\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def result_of(out: Path, mode: Mode) -> Path:
    """Where a mode's result lies."""
    return out / f"{mode.name.replace(' ', '-')}.json"


def load(out: Path, mode: Mode) -> Any:
    """A mode's result."""
    return json.loads(result_of(out, mode).read_text(encoding="utf-8"))


def log_of(out: Path, mode: Mode) -> str:
    """What a mode's engine said, "" if it never ran."""
    log = result_of(out, mode).with_suffix(".log")
    return log.read_text(errors="replace") if log.exists() else ""


def was_on(log: str) -> bool:
    """Whether the plug-in took part to the end."""
    return "evict-profile: on" in log and said_off(log) is None


def said_off(log: str) -> str | None:
    """Why the plug-in did not take part, as it said."""
    found = re.search(r"evict-profile: (off.*)", log)
    return found[1] if found else None


Results = Mapping[str, Mapping[str, Any]]


Texts = Mapping[tuple[int, int], str]


def texts(start: Start, world: World) -> dict[tuple[int, int], str]:
    """What must be said at each repeat and batch, as a digest."""
    return {
        (repeat, batch): digest(
            [
                world.behind(text, start.context, start.tokens)
                for text in texts_of(start, repeat, batch)
            ]
        )
        for repeat in range(start.repeats)
        for batch in start.batches
    }


def summary(
    results: Results, logs: Mapping[str, str], expected: Texts
) -> dict[str, Any]:
    """All that is reported."""
    devices = sorted({f"{r['device']}, SGLang {r['sglang']}" for r in results.values()})
    return {
        "device": "; ".join(devices),
        "said_text": said_text(results, expected),
        "modes": {name: figures(result) for name, result in results.items()},
        "ratios": dict(ratios(results)),
        "plug_in": {name: told(log) for name, log in logs.items() if was_on(log)},
    }


def said_text(results: Results, expected: Texts) -> bool:
    """Whether all modes said what the world has them say, all the time."""
    return all(
        run["said"] == expected[run["repeat"], run["batch"]]
        for result in results.values()
        for run in result["runs"]
    )


def figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """A mode at each batch size."""
    found: dict[str, Any] = {"up_s": result["up_s"]}
    for batch, runs in by_batch(result).items():
        speeds = [run["tokens"] / run["seconds"] for run in runs]
        steps = sum(run["steps"] for run in runs)
        tokens = sum(run["tokens"] for run in runs)
        found[f"batch {batch}"] = {
            "tokens_per_s": spread(speeds),
            "tokens_per_step": round(tokens / steps, 3) if steps else 1.0,
        }
    return found


def ratios(results: Results) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each mode over plain decoding and over whole trees, repeat by repeat."""
    for base, others in ((PLAIN, ()), (WHOLE, (PLAIN, PLAIN_AGAIN))):
        for name, result in results.items():
            if base in results and name not in (base, *others):
                yield f"{name} / {base}", over(result, results[base])


def over(result: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Speed-up at each batch size: the same prompts, so the same tokens."""
    others = by_batch(base)
    return {
        f"batch {batch}": spread(
            [
                b["seconds"] / a["seconds"]
                for a, b in zip(runs, others[batch], strict=True)
            ]
        )
        for batch, runs in by_batch(result).items()
    }


def by_batch(result: Mapping[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """A mode's runs, in order of repeats."""
    found: dict[int, list[dict[str, Any]]] = {}
    for run in result["runs"]:
        found.setdefault(run["batch"], []).append(run)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    found = {"median": statistics.median(values), "low": min(values)}
    found["high"] = max(values)
    return {name: round(value, 3) for name, value in found.items()}


def told(log: str) -> dict[str, Any]:
    """What the plug-in said of itself: memory of each pair, and its last means."""
    pairs = re.search(r"that each took: ([^;]*); built in ([\d.]+) s", log)
    lines = re.findall(r"evict-profile: (\d+ steps, mean width .*)", log)
    widths = re.findall(r"(\d+): (\d+) MiB", pairs[1]) if pairs else []
    return {
        "pair_mib": {int(width): int(size) for width, size in widths},
        "pairs_built_s": float(pairs[2]) if pairs else None,
        "decision_us": [int(us) for us in re.findall(r"decision (\d+) us", log)],
        "said": lines[-1] if lines else None,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

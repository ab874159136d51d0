"""Does a table of llama.cpp predict llama-server's time? Prediction beside the clock.

    python -m examples.small_world.export_gguf worlds/stdlib draft.gguf
    python -m examples.small_world.export_gguf worlds/stdlib large.gguf --dtype BF16 \
        --hidden 768 --width 256
    python benchmarks/llama_server.py large.gguf draft.gguf

Every setting is a process with xllamacpp's llama-server in it: plain decoding, n_max 1
to 8 at three acceptances that the server makes up (`--spec-synth-rates`), and with the
acceptance of the draft itself. Ways to draft take turns in an order drawn anew each
round, each between two turns of plain decoding, whose time is divided by its own: CPU
time of one thread, since the memory's speed changes within seconds on a shared machine.
Tokens are streamed, so that each step is timed by itself. A turn's time is the median
of its full steps, and a setting's the median of its turns: beside a neighbour's load,
which lasts seconds, either is what the others are.

Both tables are measured in the same minutes: their sweeps are stopped, and go on for a
moment after each way to draft. From one quarter of an hour to the next plain decoding,
bound by memory, moves against wide forwards, bound by arithmetic, by 5 to 10 % on a
shared machine; that would be judged instead of the costs.

Predicted is what `advise --for llama-cpp --draft-table` says of tokens committed as
often as the server did, and measured is as many over the time of its steps: costs are
judged, and luck is not. The sweeps route the replies that the settings give. Exit code
1 where the median or the largest error exceeds `MOST_OFF`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.common import Answer, command, count
from evict_profile.advice.acceptance import of_lengths
from evict_profile.advice.advise import Advisor
from evict_profile.config import load_sweep
from evict_profile.errors import ConfigError
from evict_profile.io import write_json
from evict_profile.records import replace, to_mapping
from evict_profile.table import CostTable
from runners.protocol import Message, serve

PROMPT = 'import os\n\n\ndef read(path: str) -> str:\n    """Return the text of a'
TOKENS, PLAIN_TOKENS, WARM_UP_TOKENS = 72, 36, 24
"""Of a reply with drafts, of one without, and of a first that maps the file's pages."""
FIRST_STEPS = 3
"""Left out: the prompt, the draft's reading of it, and a first step."""
STEP_US = 2_000.0
"""Tokens that come in less CPU time than this are of one step."""
REPLIES, REPLIES_FILE = 16, "replies.txt"
"""The text that the sweeps route, in the folder of both."""
SWEEP_TURN_S = 1.5

RATES, LENGTHS = (0.9, 0.7, 0.5), (1, 2, 3, 5, 8)
OWN_LENGTHS = (1, 3, 8)
DRAWS = 2000
MOST_OFF = (0.06, 0.15)
"""Of 18 settings 0.034 and 0.088 were measured."""


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


class Server:
    """The child: one llama-server, asked for replies."""

    def __init__(self, setting: Setting) -> None:
        import xllamacpp

        self.server, self.n_max = xllamacpp.Server(params_of(setting)), setting.n_max

    def decode(self, ask: Message) -> Message:
        """The full steps of a reply, and its text."""
        stamps_us, words = [], []

        def seen(message: Message) -> None:
            stamps_us.append(time.process_time_ns() / 1e3)
            words.append(message["choices"][0]["text"])

        request = {
            "prompt": f"# {ask['number']}\n{PROMPT}",
            "n_predict": ask["tokens"],
            "temperature": 0.0,
            "cache_prompt": False,
            "ignore_eos": True,
            "stream": True,
        }
        self.server.handle_completions(request, seen)
        # The last message ends the reply and holds no token.
        us, committed = full_steps(np.array(stamps_us[:-1]), self.n_max)
        return {"us": us, "committed": committed, "text": "".join(words)}


def full_steps(stamps_us: np.ndarray, n_max: int) -> tuple[list[float], list[int]]:
    """CPU time of each full step, and the tokens that it committed.

    Left out are the first, and those that draft less since the reply ends.

    Args:
        stamps_us: when each token of the reply came, float64 [tokens].
    """
    begins = np.flatnonzero(np.diff(stamps_us, prepend=-np.inf) > STEP_US)
    committed = np.diff(begins, append=len(stamps_us))[1:]
    full = begins[1:] + n_max < len(stamps_us)
    full[: FIRST_STEPS - 1] = False
    took_us = np.diff(stamps_us[begins])
    return took_us[full].tolist(), committed[full].tolist()


class Child:
    """A process with a server in it."""

    def __init__(self, setting: Setting) -> None:
        words = [sys.executable, __file__, "--serve", json.dumps(asdict(setting))]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def decode(self, number: int, tokens: int) -> Message:
        """One turn."""
        ask = {"do": "decode", "number": number, "tokens": tokens}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(ask) + "\n")
        self.process.stdin.flush()
        answer: Message = json.loads(self.process.stdout.readline())
        return answer


class Sweep:
    """`evict-profile profile` of one GGUF, which goes on in turns only."""

    def __init__(self, model: Path, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.tables, self.log = home / "tables", home / "log.txt"
        plan, spec = (
            load_sweep(Path(__file__).with_suffix(".yaml")),
            home / "sweep.json",
        )
        llama = replace(plan.llama, text=str(home.parent.resolve() / REPLIES_FILE))
        write_json(to_mapping(replace(plan, llama=llama)), spec)
        words = [sys.executable, "-m", "evict_profile", "profile", "--model", model]
        words += ["--sweep", spec, "--out", home / "run", "--tables", self.tables]
        with self.log.open("wb") as log:
            self.process = psutil.Popen(words, stdout=log, stderr=log)
        self._all("suspend")

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *_: object) -> None:
        self._all("kill")

    def turn(self) -> bool:
        """Go on for a moment; false once there is nothing left to measure."""
        self._all("resume")
        try:
            self.process.wait(SWEEP_TURN_S)
        except psutil.TimeoutExpired:
            self._all("suspend")
            return True
        return False

    def table(self) -> CostTable:
        """Measure what is left, and read the table."""
        self._all("resume")
        if self.process.wait():
            raise ConfigError(f"the sweep failed: {self.log} says why")
        return CostTable.load(max(self.tables.rglob("*.json"), key=os.path.getmtime))

    def _all(self, do: str) -> None:
        """Suspend, resume or kill the sweep and its runner."""
        if self.process.is_running():
            for process in [self.process, *self.process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    getattr(process, do)()


def settings(target: str, draft: str) -> list[Setting]:
    """Plain decoding, then every way to draft."""
    made = [Setting(target)]
    made += [Setting(target, draft, n, rate) for rate in RATES for n in LENGTHS]
    return made + [Setting(target, draft, n) for n in OWN_LENGTHS]


def write_replies(draft: str, path: Path) -> None:
    """The text that the settings decode, for the sweeps to route."""
    child = Child(Setting(draft, draft, 1))
    texts = [child.decode(number, TOKENS)["text"] for number in range(REPLIES)]
    child.process.kill()
    path.write_text("".join(texts), encoding="utf-8")


def turns(
    asked: list[Setting], rounds: int, sweeps: list[Sweep]
) -> dict[Setting, list[Message]]:
    """Every way once a round, in an order drawn anew, between two of plain decoding.

    After each way a sweep goes on, of those that are not done. Each round has new
    processes, since of six one was 6 +- 2 % faster than the others.
    """
    plain, *ways = asked
    found: dict[Setting, list[Message]] = {way: [] for way in ways}
    for number in range(rounds):
        children = {setting: Child(setting) for setting in asked}
        for child in children.values():
            child.decode(number, WARM_UP_TOKENS)
        before = children[plain].decode(number, PLAIN_TOKENS)["us"]
        for way in random.Random(number).sample(ways, len(ways)):
            turn = children[way].decode(number, TOKENS)
            after = children[plain].decode(number, PLAIN_TOKENS)["us"]
            found[way].append({**turn, "plain_us": float(np.median(before + after))})
            before, sweeps = after, sweeps[1:] + [s for s in sweeps[:1] if s.turn()]
        for child in children.values():
            child.process.kill()
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def compared(
    found: dict[Setting, list[Message]],
    table: CostTable,
    level_ms: float | None = None,
    draft: CostTable | None = None,
) -> Iterator[dict[str, Any]]:
    """Speed over plain decoding, predicted and by the clock, of each way to draft."""
    rng = np.random.default_rng(0)
    for way, own in found.items():
        committed = float(np.mean(np.concatenate([turn["committed"] for turn in own])))
        steps = np.array([np.median(turn["us"]) / turn["plain_us"] for turn in own])
        drawn = np.median(rng.choice(steps, (DRAWS, len(steps))), axis=1)
        low, high = committed / np.quantile(drawn, (0.975, 0.025))
        speed = committed / float(np.median(steps))
        lengths = of_lengths({way.n_max: committed}, "the server")
        advisor = Advisor.of(table, lengths, None, level_ms, draft)
        stated = advisor.at(1).ways[-1].speed
        yield {
            "setting": way.name,
            "predicted": stated.value,
            "predicted_low": stated.low,
            "predicted_high": stated.high,
            "measured": speed,
            "low": low,
            "high": high,
            "error": stated.value / speed - 1.0,
            "turns": own,
        }


def measured(asked: argparse.Namespace, answer: Answer) -> list[dict[str, Any]]:
    """Every way to draft, beside what the tables of the same minutes say of it.

    Turns are written before tables are made, which a gate may refuse.
    """
    asked.runs.mkdir(parents=True, exist_ok=True)
    write_replies(str(asked.draft), asked.runs / REPLIES_FILE)
    ways = settings(str(asked.target), str(asked.draft))
    with (
        Sweep(asked.target, asked.runs / "target") as of_target,
        Sweep(asked.draft, asked.runs / "draft") as of_draft,
    ):
        found = turns(ways, asked.rounds, [of_target, of_draft])
        answer.keep([{"setting": w.name, "turns": own} for w, own in found.items()])
        table, draft = of_target.table(), of_draft.table()
    return list(compared(found, table, draft=draft))


def show(rows: list[dict[str, Any]]) -> bool:
    """A line a setting, and how far predictions are off: whether too far."""
    for row in rows:
        print(
            "{setting:<24} predicted {predicted:.3f} ({predicted_low:.3f} to "
            "{predicted_high:.3f}), measured {measured:.3f} ({low:.3f} to "
            "{high:.3f}), {error:+.1%}".format(**row)
        )
    errors = np.abs([row["error"] for row in rows])
    best = max(rows, key=lambda row: row["measured"])
    advised = max(rows, key=lambda row: row["predicted"])
    print(
        f"median error {np.median(errors):.1%}, largest {errors.max():.1%}; best "
        f"{best['setting']} {best['measured']:.3f}, advised {advised['setting']} "
        f"{advised['measured']:.3f} of plain decoding"
    )
    return bool(np.median(errors) > MOST_OFF[0] or errors.max() > MOST_OFF[1])


@command
def main(arguments: Sequence[str]) -> int:
    """Measure, print the settings, and write them; 1 where they are off too far."""
    if arguments[:1] == ["--serve"]:
        serve({"decode": Server(Setting(**json.loads(arguments[1]))).decode})
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--rounds", type=count, default=8)
    parser.add_argument("--runs", type=Path, default=Path("runs/llama-server"))
    parser.add_argument("--out", type=Path, default=Path("llama_server.json"))
    asked = parser.parse_args(arguments)
    for file in (asked.target, asked.draft):
        if not file.is_file():
            raise ConfigError(f"{file}: no such file; write a GGUF there first")
    answer = Answer(asked.out, [asked.target, asked.draft])
    rows = measured(asked, answer)
    answer.write(rows)
    return int(show(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

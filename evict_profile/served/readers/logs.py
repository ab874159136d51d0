"""Logs of SGLang and vLLM: steps, accepted lengths by drafts, load and CUDA graphs.

Both log the tokens per second since their last line, and the requests that run at that
line. If as many ran at the line before, and no prompt was processed in between, a step
takes requests x accepted length / tokens per second. Accepted lengths are means over
the drafts that a line counts, so a line of an idle server weighs next to nothing.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from evict_profile.errors import ConfigError
from evict_profile.records import Facts, replace
from evict_profile.served.readers.facts import (
    Given,
    Reading,
    deployment_of,
    drafts_of,
    lengths_of,
    timed,
)
from evict_profile.served.run import Deployment, Load, Run

BLOCKS, LINES = 10, 4
"""Most parts of a log's lines at one batch, each a run, and fewest lines of a part:
neighbouring lines are correlated, and parts show how much they vary."""

RARE = 0.05
"""Share of steps without a graph that is left unsaid."""

INTERVAL = 40
"""Steps between two lines of SGLang (--decode-log-interval)."""

SIGN = re.compile(
    r"Decode batch.*gen throughput|SpecDecoding metrics|Running: \d+ reqs|server_args="
    r"|Initializing a V1 LLM engine"
)
_START = re.compile(r"server_args=|Initializing a V1 LLM engine")
_FACTS = {
    "drafts": re.compile(r"num_spec(?:ulative)?_tokens'?[=:] ?(\d+)"),
    "verified": re.compile(r"speculative_num_draft_tokens=(\d+)"),
    "levels": re.compile(r"speculative_num_steps=(\d+)"),
    "topk": re.compile(r"speculative_eagle_topk=(\d+)"),
    "adaptive": re.compile(r"speculative_adaptive=(True)"),
    "plain": re.compile(r"speculative_(?:algorithm|config)=(None)"),
    "interval": re.compile(r"decode_log_interval=(\d+)"),
    "model": re.compile(r"(?:model_path=|with config: model=)'([^']+)'"),
    "tp": re.compile(r"(?:tensor_parallel_size|tp_size)=(\d+)"),
    "version": re.compile(r"LLM engine \(v([^)]+)\)"),
    "quantization": re.compile(r"quantization='?([^',)]+)"),
    "eager": re.compile(r"(enforce_eager|disable_cuda_graph)=True"),
    "mode": re.compile(r"(?:cudagraph_mode=|<CUDAGraphMode\.)(PIECEWISE|NONE)\b"),
    "tokens": re.compile(r"max_cudagraph_capture_size': (\d+)"),
    "batches": re.compile(r"target verify CUDA graph begin.* bs=\[[\d, ]*?(\d+)\]"),
}
_SGLANG = re.compile(
    r"Decode batch.*#running-req: (?P<running>\d+)(?:.*#token: (?P<cached>\d+))?"
    r".*token usage: (?P<usage>[\d.]+)(?:.*accept len: (?P<length>[\d.]+))?"
    r"(?:.*cuda graph: (?P<graph>True|False))?"
    r".*gen throughput \(token/s\): (?P<rate>[\d.]+)"
    r"(?:, #queue-req: (?P<waiting>\d+))?"
)
_VLLM = re.compile(
    r"Avg prompt throughput: (?P<prompts>[\d.]+) tokens/s"
    r"(?:, Avg generation throughput: (?P<rate>[\d.]+) tokens/s)?"
    r", Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs"
    r"(?:.*KV cache usage: (?P<usage>[\d.]+)%)?"
)
_ACCEPTED = re.compile(
    r"SpecDecoding metrics: .*Drafted: (\d+) tokens, "
    r"Per-position acceptance rate: (\d[\d., ]*\d)"
)


@dataclass
class _Line:
    """`lengths` are by k, `steps` the drafting steps that they are means of."""

    running: int
    is_steady: bool = False
    rate: float = 0.0
    lengths: list[float] = field(default_factory=list)
    steps: float = 0.0
    context: float | None = None

    @property
    def step_us(self) -> float | None:
        if not (self.is_steady and self.rate and self.running):
            return None
        length = self.lengths[-1] if self.lengths else 1.0
        return 1e6 * self.running * length / self.rate


@dataclass
class _Server:
    """What a log states from one start of a server to the next."""

    engine: str = ""
    facts: Facts = field(default_factory=dict)
    lines: list[_Line] = field(default_factory=list)
    graphs: list[bool] = field(default_factory=list)
    waiting: int | None = None
    usage: float | None = None
    was: int = -1
    """Requests that ran at the line before; -1 after a prompt."""

    def add(self, line: str) -> None:
        for name, sign in _FACTS.items():
            if match := sign.search(line):
                self.facts[name] = match[1]
        if "Prefill batch" in line:
            self.was = -1
        elif match := _SGLANG.search(line):
            self._add_sglang(match)
        elif match := _VLLM.search(line):
            self._add_vllm(match)
        elif match := _ACCEPTED.search(line):
            self._add_accepted(match)

    def _add_sglang(self, found: re.Match[str]) -> None:
        line, self.engine = self._line(found), "sglang"
        if found["cached"] and line.running:
            line.context = int(found["cached"]) / line.running
        if found["length"]:
            line.lengths = [float(found["length"])]
            line.steps = line.running * float(self.facts.get("interval", INTERVAL))
        if found["graph"]:
            self.graphs.append(found["graph"] == "True")
        self._load(found, 1.0)

    def _add_vllm(self, found: re.Match[str]) -> None:
        self.engine = "vllm"
        if float(found["prompts"]):
            self.was = -1
        self._line(found)
        self._load(found, 100.0)

    def _line(self, found: re.Match[str]) -> _Line:
        running = int(found["running"])
        line = _Line(running, running == self.was, float(found["rate"] or 0.0))
        self.lines.append(line)
        self.was = running
        return line

    def _load(self, found: re.Match[str], whole: float) -> None:
        if found["waiting"]:
            self.waiting = max(self.waiting or 0, int(found["waiting"]))
        if found["usage"]:
            self.usage = max(self.usage or 0.0, float(found["usage"]) / whole)

    def _add_accepted(self, found: re.Match[str]) -> None:
        """vLLM logs what steps accepted after, and in old versions before, the load."""
        self.engine = "vllm"
        shares = [float(share) for share in found[2].split(",")]
        if not self.lines or self.lines[-1].lengths:
            self.lines.append(_Line(max(self.was, 0)))
        line = self.lines[-1]
        line.lengths = list(lengths_of(shares).values())
        line.steps = int(found[1]) / len(shares)

    @property
    def drafts(self) -> int | None:
        """K, by the accepted positions or the configuration."""
        if counts := {len(line.lengths) for line in self.lines} - {0, 1}:
            return max(counts)
        if "plain" in self.facts:
            return 0
        width = int(self.facts["verified"]) - 1 if "verified" in self.facts else None
        return int(self.facts["drafts"]) if "drafts" in self.facts else width

    def graphs_missing(self, drafts: int) -> str | None:
        """Why steps took longer than with whole graphs; None if nothing states it."""
        known = self.facts.keys() & {"eager", "mode", "tokens", "batches"}
        if not (known or self.graphs):
            return None
        return "; ".join(self._slow_graphs(drafts))

    def _slow_graphs(self, drafts: int) -> Iterator[str]:
        facts, eager = self.facts, self.graphs.count(False)
        if flag := facts.get("eager"):
            yield f"{flag} turns CUDA graphs off; start the server without it"
        elif mode := facts.get("mode"):
            yield (
                f"CUDA graphs fell to {mode} (vLLM #49548: from 59.6 to 50.0 tokens a "
                "second); choose an --attention-backend that captures drafts as a whole"
            )
        elif eager > RARE * len(self.graphs):
            yield (
                f"{eager} of {len(self.graphs)} logged steps ran without a CUDA "
                "graph; capture up to the largest batch with --cuda-graph-max-bs-decode"
            )
        running = max((line.running for line in self.lines), default=0)
        tokens, most = (
            running * (drafts + 1),
            int(facts.get("batches", 0)) * (drafts + 1),
        )
        captured = int(facts.get("tokens", most))
        if 0 < captured < tokens:
            yield (
                f"{running} requests at once verify {tokens} tokens, and CUDA graphs "
                f"end at {captured}; capture larger ones"
            )


def read(path: Path, text: str, given: Given) -> Reading:
    servers = [_Server()]
    for line in text.splitlines():
        if _START.search(line):
            servers.append(_Server())
        servers[-1].add(line)
    return Reading(
        [
            run
            for number, server in enumerate(servers)
            if server.lines
            for run in _runs(server, path, f"{path}, server {max(number, 1)}", given)
        ]
    )


def _runs(server: _Server, path: Path, source: str, given: Given) -> list[Run]:
    if "adaptive" in server.facts:
        raise ConfigError(
            f"{path}: the server changes K while it runs (speculative_adaptive); start "
            "it with one K"
        )
    drafts = drafts_of(path, server.drafts, given)
    own = {n: server.facts.get(n, "") for n in ("model", "version")}
    tp = int(server.facts["tp"]) if "tp" in server.facts else None
    stated = Deployment(**own, engine=server.engine, tp=tp)
    width = int(server.facts.get("verified", drafts + 1)) if drafts else 1
    shape = {
        "drafts": drafts,
        "levels": int(server.facts.get("levels", drafts)) if drafts else 0,
        "topk": int(server.facts.get("topk", 1)),
        "width": width,
        "deployment": deployment_of(path, stated, given),
    }
    load = Load(
        waiting=server.waiting,
        kv_usage=server.usage,
        graphs=server.graphs_missing(width - 1),
    )
    runs = list[Run]()
    for batch in sorted({max(line.running, 1) for line in server.lines}):
        lines = [line for line in server.lines if max(line.running, 1) == batch]
        useful = [line for line in lines if line.steps or line.step_us]
        whole = _context(useful)
        for n, part in enumerate(_parts(useful), 1):
            name = f"{source}, {batch} running, part {n}"
            runs.append(_run(name, batch, part, whole, shape, load))
    return runs


def _context(lines: Sequence[_Line]) -> float | None:
    """The mean over lines that show a step, so that all parts are of one context."""
    known = [line.context for line in lines if line.context and line.step_us]
    return float(np.mean(known)) if known else None


def _parts(lines: Sequence[_Line]) -> Iterator[Sequence[_Line]]:
    if lines:
        count = min(max(len(lines) // LINES, 1), BLOCKS)
        ends = np.linspace(0, len(lines), count + 1).round().astype(int).tolist()
        yield from (lines[a:b] for a, b in pairwise(ends))


def _run(
    source: str,
    batch: int,
    lines: Sequence[_Line],
    context: float | None,
    shape: Facts,
    load: Load,
) -> Run:
    counted = [line for line in lines if line.steps]
    steps_us = [us for line in lines if (us := line.step_us)]
    lengths = dict[int, float]()
    if counted and shape["drafts"]:
        weights = [line.steps for line in counted]
        mean = np.average([line.lengths for line in counted], axis=0, weights=weights)
        first = shape["levels"] + 1 - len(mean)
        lengths = dict(enumerate(mean.tolist(), first))
        load = replace(load, steps=sum(weights))
    return timed(
        source,
        None,
        float(np.median(steps_us)) if steps_us else None,
        batch=batch,
        context=context,
        accept_lengths=lengths,
        load=replace(
            load, at_once=float(np.mean([line.running for line in lines])) or None
        ),
        **shape,
    )

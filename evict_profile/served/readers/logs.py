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
from evict_profile.served.readers import facts
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.run import PART, STEP_FLAGS, Deployment, Load, Run

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
IS = r"['\"]?(?:=|:) ?"
"""Between the name of a setting and its value: SGLang 0.5.23 logs a dict."""

_FACTS = {
    name: re.compile(sign.replace(" IS ", IS))
    for name, sign in {
        "drafts": r"num_spec(?:ulative)?_tokens IS (\d+)",
        "verified": r"speculative_num_draft_tokens IS (\d+)",
        "levels": r"speculative_num_steps IS (\d+)",
        "topk": r"speculative_eagle_topk IS (\d+)",
        "adaptive": r"(speculative_adaptive IS True|speculative_algorithm IS 'NGRAM'"
        r"|SpeculativeConfig\(method='(?:ngram|suffix)'|evict-profile: on\b)",
        "plain": r"speculative_(?:algorithm|config) IS (None)",
        "interval": r"decode_log_interval IS (\d+)",
        "model": r"\b(?:model_path IS |with config: model=)'([^']+)'",
        "tp": r"(?:tensor_parallel_size|tp_size) IS (\d+)",
        "version": r"LLM engine \(v([^)]+)\)",
        "eager": r"(enforce_eager|disable_cuda_graph) IS True",
        "mode": r"(?:cudagraph_mode=|<CUDAGraphMode\.)(PIECEWISE|NONE)\b",
        "tokens": r"max_cudagraph_capture_size IS (\d+)",
        "batches": r"target verify CUDA graph .* bs=\[[\d, ]*?(\d+)\]",
        **{flag: rf"\b{flag} IS '?(?!None)([\w.]+)" for flag in STEP_FLAGS},
    }.items()
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
    rate: float = 0.0
    is_steady: bool = False
    lengths: list[float] = field(default_factory=list)
    steps: float = 0.0
    context: float | None = None

    @property
    def step_us(self) -> float | None:
        if not (self.is_steady and self.rate and self.running):
            return None
        return 1e6 * self.running * (self.lengths or [1.0])[-1] / self.rate


@dataclass
class _Server:
    """What a log states from one start of a server to the next."""

    engine: str = ""
    stated: dict[str, str] = field(default_factory=dict)
    lines: list[_Line] = field(default_factory=list)
    graphs: list[bool] = field(default_factory=list)
    waiting: int | None = None
    usage: float | None = None
    was: int = -1
    """Requests that ran at the line before; -1 after a prompt."""

    def add(self, text: str) -> None:
        found = ((name, sign.search(text)) for name, sign in _FACTS.items())
        self.stated |= {name: match[1] for name, match in found if match}
        if "Prefill batch" in text:
            self.was = -1
        elif match := _SGLANG.search(text):
            self._add_sglang(match)
        elif match := _VLLM.search(text):
            self.engine = "vllm"
            self.was = -1 if float(match["prompts"]) else self.was
            self._line(match, 100.0)
        elif match := _ACCEPTED.search(text):
            self._add_accepted(match)

    def _add_sglang(self, found: re.Match[str]) -> None:
        line, self.engine = self._line(found, 1.0), "sglang"
        if found["cached"] and line.running:
            line.context = int(found["cached"]) / line.running
        if found["length"]:
            line.lengths = [float(found["length"])]
            line.steps = line.running * float(self.stated.get("interval", INTERVAL))
        if found["graph"]:
            self.graphs.append(found["graph"] == "True")

    def _line(self, found: re.Match[str], whole: float) -> _Line:
        running = int(found["running"])
        line = _Line(running, float(found["rate"] or 0.0), running == self.was)
        self.lines.append(line)
        self.was = running
        if found["waiting"]:
            self.waiting = max(self.waiting or 0, int(found["waiting"]))
        if found["usage"]:
            self.usage = max(self.usage or 0.0, float(found["usage"]) / whole)
        return line

    def _add_accepted(self, found: re.Match[str]) -> None:
        """vLLM logs what steps accepted after, and in old versions before, the load."""
        self.engine = "vllm"
        shares = [float(share) for share in found[2].split(",")]
        if not self.lines or self.lines[-1].lengths:
            self.lines.append(_Line(max(self.was, 0)))
        self.lines[-1].lengths = [*facts.lengths_of(shares).values()]
        self.lines[-1].steps = int(found[1]) / len(shares)

    @property
    def drafts(self) -> int | None:
        """K, by the accepted positions or the configuration."""
        if counts := {len(line.lengths) for line in self.lines} - {0, 1}:
            return max(counts)
        if int(self.stated.get("topk", 1)) > 1 and "levels" in self.stated:
            return int(self.stated["levels"])  # Of a tree K is its depth.
        if "verified" in self.stated:
            return int(self.stated["verified"]) - 1
        known = "0" if "plain" in self.stated else self.stated.get("drafts")
        return None if known is None else int(known)

    def slow_graphs(self, width: int) -> Iterator[str]:
        """Why steps took longer than with whole CUDA graphs, and the remedy."""
        stated, eager = self.stated, self.graphs.count(False)
        if flag := stated.get("eager"):
            yield f"{flag} turns CUDA graphs off; start the server without it"
        elif mode := stated.get("mode"):
            yield (
                f"CUDA graphs fell to {mode} (vLLM #49548: from 59.6 to 50.0 tokens a "
                "second); choose an --attention-backend that captures drafts as a "
                "whole, and for a schedule of K set VLLM_USE_V2_MODEL_RUNNER=1"
            )
        elif eager > RARE * len(self.graphs):
            yield (
                f"{eager} of {len(self.graphs)} logged steps ran without a CUDA "
                "graph; capture up to the largest batch with --cuda-graph-max-bs-decode"
            )
        running = max((line.running for line in self.lines), default=0)
        captured = int(stated.get("tokens", width * int(stated.get("batches", 0))))
        if 0 < captured < width * running:
            yield (
                f"{running} requests at once verify {width * running} tokens, and CUDA "
                f"graphs end at {captured}; capture larger ones"
            )


def read(path: Path, text: str, given: int | None) -> FileRuns:
    servers = [_Server()]
    for line in text.splitlines():
        if _START.search(line):
            servers.append(_Server())
        servers[-1].add(line)
    numbered = [(n or 1, each) for n, each in enumerate(servers) if each.lines]
    return FileRuns(
        [run for n, each in numbered for run in _runs(each, path, n, given)]
    )


def _runs(server: _Server, path: Path, number: int, given: int | None) -> Iterator[Run]:
    """Runs of each number of requests; K may not change from step to step."""
    stated = server.stated
    if "adaptive" in stated:
        raise ConfigError(
            f"{path}: the server changes K while it runs ({stated['adaptive']}); start "
            "it with one K and a method that drafts at every step"
        )
    if given == 0 and any(line.lengths for line in server.lines):
        raise ConfigError(
            f"{path}: logs accepted lengths, and K = 0 was given; give the K that "
            "this server drafted, or the log of plain decoding"
        )
    drafts = facts.drafts_of(path, server.drafts, given)
    known: Facts = {"drafts": drafts}
    if drafts:
        shape = {"levels": "levels", "topk": "topk", "width": "verified"}
        known |= {n: int(stated[own]) for n, own in shape.items() if own in stated}
    known["deployment"] = Deployment(
        model=stated.get("model", ""),
        engine=server.engine,
        version=stated.get("version", ""),
        tp=int(stated["tp"]) if "tp" in stated else None,
        flags={
            flag: int(fact) if fact.isdigit() else fact
            for flag in STEP_FLAGS
            if (fact := stated.get(flag))
        },
    )
    has_graphs = server.graphs or stated.keys() & {"eager", "mode", "tokens", "batches"}
    slow = "; ".join(server.slow_graphs(known.get("width", drafts + 1)))
    load = Load(
        waiting=server.waiting,
        kv_usage=server.usage,
        graphs=slow if has_graphs else None,
    )
    for batch in sorted({max(line.running, 1) for line in server.lines}):
        own = [line for line in server.lines if max(line.running, 1) == batch]
        useful = [line for line in own if line.steps or line.step_us]
        contexts = [line.context for line in useful if line.step_us and line.context]
        known["context"] = float(np.mean(contexts)) if contexts else None
        for part, lines in enumerate(_parts(useful), 1):
            source = f"{path}, server {number}, {batch} running{PART}{part}"
            yield _run(source, batch, lines, load, known)


def _parts(lines: Sequence[_Line]) -> Iterator[Sequence[_Line]]:
    if lines:
        count = min(max(len(lines) // LINES, 1), BLOCKS)
        ends = np.linspace(0, len(lines), count + 1).round().astype(int).tolist()
        yield from (lines[a:b] for a, b in pairwise(ends))


def _run(
    source: str, batch: int, lines: Sequence[_Line], load: Load, known: Facts
) -> Run:
    counted = [line for line in lines if line.steps]
    steps_us = [us for line in lines if (us := line.step_us)]
    load = replace(
        load, at_once=float(np.mean([each.running for each in lines])) or None
    )
    lengths = dict[int, float]()
    if counted and known["drafts"]:
        weights = [line.steps for line in counted]
        mean = np.average([line.lengths for line in counted], axis=0, weights=weights)
        longest = known["levels"] if "levels" in known else known["drafts"]
        lengths = dict(enumerate(mean.tolist(), longest + 1 - len(mean)))
        load = replace(load, steps=sum(weights))
    step_us = float(np.median(steps_us)) if steps_us else None
    return facts.timed(
        source, None, step_us, batch=batch, accept_lengths=lengths, load=load, **known
    )

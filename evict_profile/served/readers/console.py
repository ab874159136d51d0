"""What `vllm bench serve` and SGLang's `bench_serving` print at their end.

Both print the numbers of their JSON under other names, so a block becomes that JSON.
"""

import re
from pathlib import Path

from evict_profile.records import Facts
from evict_profile.served.readers.facts import FileRuns
from evict_profile.served.readers.results import POSITIONS, run_of

START = re.compile(r"=+ Serving Benchmark Result =+")
_LINE = re.compile(r"^\s*([A-Z][^:\n]*):\s+(\S+)\s*$", re.MULTILINE)

NAMES = {
    "Backend": "backend",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Peak concurrent requests": "max_concurrent_requests",
    "Traffic request rate": "request_rate",
    "Request rate configured (RPS)": "request_rate",
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Output token throughput (tok/s)": "output_throughput",
    "Concurrency": "concurrency",
    "Mean TTFT (ms)": "mean_ttft_ms",
    "Mean TPOT (ms)": "mean_tpot_ms",
    "Median TPOT (ms)": "median_tpot_ms",
    "Accept length": "accept_length",
    "Acceptance length": "spec_decode_acceptance_length",
    "Drafts": "spec_decode_num_drafts",
    "Draft tokens": "spec_decode_draft_tokens",
}
"""Names of the JSON by what is printed."""


def read(path: Path, text: str, given: int | None) -> FileRuns:
    blocks = enumerate(START.split(text)[1:], 1)
    return FileRuns([run_of(_result(each), path, n, given) for n, each in blocks])


def _result(block: str) -> Facts:
    found: Facts = {"max_concurrency": None}
    shares = list[float]()
    for name, value in _LINE.findall(block):
        if name.startswith("Position "):
            shares.append(float(value) / 100.0)
        elif name in NAMES:
            found[NAMES[name]] = _value(value)
    return found | ({POSITIONS: shares} if shares else {})


def _value(text: str) -> float | int | str:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text

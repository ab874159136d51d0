"""Exported files, what they must say, and how each engine looks them up.

The look-ups are restated here in a line or two; tests/sglang and tests/vllm compare
them with the engines' own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor, Gain
from evict_profile.advice.answer import Answer
from evict_profile.advice.drafting import drafter_of
from evict_profile.advice.plan import DraftPlan, Range
from evict_profile.advice.steps import ONE, OfTable
from evict_profile.integrations.exporters import Export, write_advice
from evict_profile.io import data_root
from evict_profile.served.step import ServedStep
from evict_profile.stats import Estimate
from evict_profile.table import CostTable


@dataclass(frozen=True)
class Written:
    """A schedule as it was written.

    Attributes:
        content: of the file.
        chosen: drafts by batch.
    """

    path: Path
    made: Export
    content: Any
    chosen: dict[int, int]


def shipped_table(name):
    """A composed table of the repository, by its path below the composed ones."""
    return CostTable.load(
        data_root() / "cost_tables" / "composed" / name / "1.0.0.json"
    )


def advisor_of(table, lengths=None, drafter=None):
    """Of a table as if a sweep had measured it."""
    kind, lengths = drafter_of(drafter, table), lengths or of_rate(0.8)
    steps = OfTable(table, min(table.axes.context), ServedStep.of(table))
    return Advisor(steps, lengths, kind)


def write_schedule(table, engine, path, *drafts):
    """A file in which batches 1 to 4, 5 to 8 and so on draft these; one is for all."""
    ends = [4 * number for number in range(1, 1 + len(drafts))]
    ranges = tuple(Range(end - 3, end, k) for end, k in zip(ends, drafts, strict=True))
    whole = Estimate(2.0, 1.9, 2.1) if len(drafts) > 1 else ONE
    lead = Gain(drafts[0], Estimate(1.1, 1.05, 1.15), "table")
    plan = DraftPlan({1: 1.0}, lead, schedule=ranges, schedule_gain=whole)
    made = write_advice(Answer(advisor_of(table), plan), engine, path)
    text = path.read_text(encoding="utf-8") if made.fields else ""
    content = yaml.safe_load(text)
    chosen = {b: r.drafts for r in ranges for b in range(r.first, r.last + 1)}
    return Written(path, made, content, chosen)


def vllm_reads(content, batch):
    for first, last, drafts in content["num_speculative_tokens_per_batch_size"]:
        if first <= batch <= last:
            return int(drafts)
    return int(drafts)


def sglang_reads(content, batch):
    slots = sorted(int(key) for key in content if key.isdigit())
    slot = slots[max(0, bisect_right(slots, batch) - 1)]
    [steps] = content[str(slot)]["candidate_steps"]
    return int(steps)


def trtllm_reads(content, batch):
    lengths = content["speculative_config"]["draft_len_schedule"]
    keys = list(lengths)
    at = bisect_left(keys, batch)
    return int(lengths[keys[at]]) if at < len(keys) else 0


READERS: dict[str, Callable[[Any, int], int]] = {
    "vllm": vllm_reads,
    "sglang": sglang_reads,
    "trtllm": trtllm_reads,
}


def sglang_reads_us(fields, requests, tokens):
    """A sum of two lines and a constant, in which lines end flat."""
    of_requests = np.interp(requests, fields["bs_probes"], fields["alpha_seconds"])
    of_tokens = np.interp(tokens, fields["m_probes"], fields["theta_seconds"])
    return 1e6 * float(fields["bias_seconds"] + of_requests + of_tokens)


def vllm_reads_us(verify_ms, tokens, captured=0):
    """Costs never fall; up to the largest captured size the point at or above, beyond
    it a line between points beyond it."""
    sizes, costs_ms = np.array(verify_ms).T
    costs_us = 1e3 * np.maximum.accumulate(costs_ms)
    beyond = sizes > captured
    if tokens > captured and beyond.any():
        return float(np.interp(tokens, sizes[beyond], costs_us[beyond]))
    return float(costs_us[sizes >= tokens][0])

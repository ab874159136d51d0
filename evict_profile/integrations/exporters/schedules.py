"""Draft lengths by batch, as stock engines read them: no plug-in, chains only.

Each engine reads a stretch of batches in its own way: vLLM by both ends, SGLang by the
first batch, TensorRT-LLM by the last. None knows a batch beyond what was priced, so a
schedule ends in plain decoding there, which cannot lose against itself.
"""

import json
import shlex

from evict_profile.advice.advise import Advisor, Stretch, schedule
from evict_profile.advice.drafting import DraftCost
from evict_profile.errors import ConfigError, TableError
from evict_profile.integrations.exporters.export import (
    Export,
    ExportOptions,
    staircases_at,
)
from evict_profile.table import CostTable

MODEL, DRAFTER = "MODEL", "DRAFTER"


def vllm_schedule(table: CostTable, options: ExportOptions) -> Export:
    """vLLM's `num_speculative_tokens_per_batch_size`: [first, last, drafts] each.

    vLLM carries the last length on to its largest batch, so the last entry is of the
    first batch that was not priced, and drafts nothing. It never drafts more than
    `num_speculative_tokens`.
    """
    stretches, notes = _priced(table, options)
    ranges = [[each.first, each.last, each.drafts] for each in stretches]
    beyond = stretches[-1].last + 1
    fields = {
        "num_speculative_tokens": max(each.drafts for each in stretches),
        "num_speculative_tokens_per_batch_size": [*ranges, [beyond, beyond, 0]],
    }
    config = json.dumps({"method": "eagle3", "model": DRAFTER, **fields})
    lost = (
        "vLLM 0.32 drops the schedule under data parallelism; without "
        "VLLM_USE_V2_MODEL_RUNNER=1 it runs piecewise graphs with one."
    )
    command = f"vllm serve {MODEL} --speculative-config {shlex.quote(config)}"
    return Export(fields, (*notes, lost), command)


def sglang_adaptive(table: CostTable, options: ExportOptions) -> Export:
    """SGLang's `--speculative-adaptive-config`: steps by the first batch of a stretch.

    One candidate a slot, since SGLang would choose among several by acceptance alone.
    """
    stretches, notes = _priced(table, options)
    slots = {each.first: each.drafts for each in stretches}
    slots[stretches[-1].last + 1] = 0
    fields = {str(batch): {"candidate_steps": [k]} for batch, k in slots.items()}
    lost = (
        "For SGLang 0.5.20 to 0.5.23, EAGLE or EAGLE3 with topk 1: it rounds a batch "
        "up to a captured size before it looks here."
    )
    command = (
        f"python -m sglang.launch_server --model-path {MODEL} --speculative-algorithm "
        f"EAGLE3 --speculative-draft-model-path {DRAFTER} --speculative-eagle-topk 1 "
        f"--speculative-num-steps {max(slots.values())} --speculative-adaptive "
        "--speculative-adaptive-config FILE"
    )
    return Export(fields, (*notes, lost), command)


def trtllm_schedule(table: CostTable, options: ExportOptions) -> Export:
    """TensorRT-LLM's `draft_len_schedule`: drafts by the last batch of a stretch.

    It drafts nothing beyond the last key, requires `max_draft_len` at the smallest key
    and refuses a longer draft at any other.

    Raises:
        TableError: as all schedules, and where drafting does not pay at batch 1.
    """
    first = _priced(table, options)[0][0].drafts
    if not first:
        raise TableError(
            "drafting does not pay at the smallest batch, and TensorRT-LLM's "
            "draft_len_schedule must begin with the longest draft; use vllm-schedule "
            "or sglang-adaptive, or run without speculative_config"
        )
    stretches, notes = _priced(table, options, longest=first)
    config = {
        "decoding_type": "Eagle3",
        "max_draft_len": first,
        "speculative_model": DRAFTER,
        "draft_len_schedule": {each.last: each.drafts for each in stretches},
    }
    lost = (
        "Each key is the last batch of its stretch, as TensorRT-LLM reads it where "
        "batches beyond the last key draft nothing; releases that require the key 1 "
        "read keys as first batches: do not use it there. No batch drafts more than "
        f"the smallest one, {first}."
    )
    fields = {"speculative_config": config}
    command = f"trtllm-serve {MODEL} --config FILE"
    return Export(fields, (*notes, lost), command, style="yaml")


def _priced(
    table: CostTable, options: ExportOptions, longest: int | None = None
) -> tuple[tuple[Stretch, ...], tuple[str, ...]]:
    """The stretches of a table's schedule, and what every schedule loses.

    Raises:
        ConfigError: no acceptance was given.
        TableError: drafting pays nowhere, or the engine asks for batches not priced.
    """
    if options.lengths is None:
        raise ConfigError(
            "a schedule needs acceptance; give --lengths, --golden, --rate, --metrics "
            "or --trace"
        )
    context = staircases_at(table, options.context)[0].context
    drafting = DraftCost(table, options.level_ms)
    advisor = Advisor(table, options.lengths, drafting, context)
    most = options.most_requests
    if most is not None and most > advisor.largest:
        raise TableError(
            f"drafts are priced up to batch {advisor.largest}, and the engine will run "
            f"{most} requests; sweep larger batches, or run at most {advisor.largest}"
        )
    stretches = schedule(advisor, longest)
    if not any(each.drafts for each in stretches):
        raise TableError(
            f"drafting pays at no batch up to {advisor.largest} at this acceptance: do "
            "not speculate; see evict-profile advise"
        )
    return stretches, (
        f"One acceptance for all requests ({options.lengths.source}): prompts, "
        "temperatures and lengths that accept otherwise want another schedule.",
        f"Drafting: {drafting}.",
        f"Priced up to batch {advisor.largest}; beyond it nothing is drafted.",
    )

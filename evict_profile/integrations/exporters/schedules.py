"""Draft lengths as stock engines read them: no plug-in, chains only.

Ranges of batches are read by both ends (vLLM), the first batch (SGLang) or the last
(TensorRT-LLM). Beyond the last range vLLM and SGLang continue its draft length, and
TensorRT-LLM drafts nothing. A command names the drafter whose time is in the advice
(`configs/draft_methods.yaml`).
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evict_profile.advice.advise import Advisor
from evict_profile.advice.drafting import drafters
from evict_profile.advice.plan import Range
from evict_profile.advice.steps import tp_of
from evict_profile.errors import ConfigError
from evict_profile.integrations.exporters.planners import Export
from evict_profile.table import CostTable

MODEL = "MODEL"
Ranges = Sequence[Range]


def vllm(ranges: Ranges, advisor: Advisor) -> Export:
    """vLLM's speculative config; its schedule caps at `num_speculative_tokens`."""
    drafts, table = _longest(ranges), advisor.steps.table
    heads = table.model.mtp_layers if isinstance(table, CostTable) else 0
    drafter = _method("vllm", advisor)
    fields: dict[str, object] = {"num_speculative_tokens": drafts}
    notes = [_beyond(ranges, "vLLM")]
    if len(ranges) > 1:
        fields["num_speculative_tokens_per_batch_size"] = [[*each] for each in ranges]
        notes.append(
            "vLLM drops the schedule under data parallelism, and 0.33 also for some "
            "methods of its V1 model runner, suffix decoding among them; without "
            "VLLM_USE_V2_MODEL_RUNNER=1 it runs piecewise graphs with one."
        )
    if drafter == {"method": "mtp"} and 1 < heads < drafts and drafts % heads:
        multiple = f"no multiple of {heads} layers, if it loads them all"
        notes.append(f"vLLM refuses {drafts} drafts, {multiple}.")
    config = shlex.quote(json.dumps({**drafter, **fields}))
    tp = _tp(advisor, "--tensor-parallel-size")
    command = f"vllm serve {MODEL} {tp}--speculative-config {config}"
    return Export(fields, tuple(notes), command)


def sglang(ranges: Ranges, advisor: Advisor) -> Export:
    """SGLang's `--speculative-adaptive-config`: steps by the first batch of a range.

    One candidate a slot, since SGLang would choose among several by acceptance alone.
    """
    slots = {str(each.first): {"candidate_steps": [each.drafts]} for each in ranges}
    fields = slots if len(ranges) > 1 else {}
    notes, steps = [_beyond(ranges, "SGLang")], _longest(ranges)
    chain = f"--speculative-eagle-topk 1 --speculative-num-steps {steps}"
    last = f"--speculative-num-draft-tokens {steps + 1}"
    if len(ranges) > 1:
        last = "--speculative-adaptive --speculative-adaptive-config FILE"
        notes.append(
            "For SGLang 0.5.20 to 0.5.23, EAGLE, EAGLE3 or NEXTN with topk 1, without "
            "DP attention and multi-layer EAGLE: it rounds a batch up to a captured "
            "size before it looks here."
        )
    else:
        notes.append("One length is in the command's flags: no file is written.")
    method = _method("sglang", advisor).replace("CHAIN", chain)
    launch = f"python -m sglang.launch_server --model-path {MODEL}"
    command = f"{launch} {_tp(advisor, '--tp-size')}{method} {last}"
    return Export(fields, tuple(notes), command)


def trtllm(ranges: Ranges, advisor: Advisor) -> Export:
    """TensorRT-LLM's `draft_len_schedule`: drafts by the last batch of a range.

    The smallest key must have `max_draft_len`.
    """
    config = {**_method("trtllm", advisor), "max_draft_len": ranges[0].drafts}
    notes = [_beyond(ranges, "TensorRT-LLM", goes_on=len(ranges) == 1)]
    if len(ranges) > 1:
        config["draft_len_schedule"] = {each.last: each.drafts for each in ranges}
        notes.append(
            "Each key is the last batch of its range; releases that require the key 1 "
            "read keys as first batches: do not use it there."
        )
    fields = {"speculative_config": config}
    command = f"trtllm-serve {MODEL} {_tp(advisor, '--tp_size')}--config FILE"
    return Export(fields, tuple(notes), command, style="yaml")


def llama_cpp(ranges: Ranges, advisor: Advisor) -> Export:
    """llama-server's draft length, one for all batches.

    The note has what the advice takes to be accepted, for a server of the user to act
    on: lengths for all K, that rise by at most one a K.
    """
    batch = min(advisor.lengths.by_batch, default=1)
    drafts, lengths = ranges[0].drafts, advisor.lengths.at(batch)
    method = _method("llama-cpp", advisor)
    command = f"llama-server -m {MODEL} {method} --spec-draft-n-max {drafts}"
    rates = np.diff(lengths.committed[: drafts + 1])
    falls = (np.diff(rates, prepend=1.0, append=0.0) <= 0.0).all()
    every = lengths.levels[: drafts + 1].tolist() == [*range(drafts + 1)]
    to_see = (
        "To see it on your server, accepted as given whatever is drafted: "
        f"{command} --spec-draft-p-min 0 "
        f"--spec-synth-rates {','.join(f'{rate:.3g}' for rate in rates)}"
    )
    notes = [f"One length for at most {ranges[0].last} requests at once."]
    notes += [to_see] * bool(falls and every)
    return Export({"n_max": drafts}, tuple(notes), command)


def _longest(ranges: Ranges) -> int:
    return max(each.drafts for each in ranges)


def _tp(advisor: Advisor, flag: str) -> str:
    """The option of the number of GPUs, if that is known."""
    table = advisor.steps.table
    return f"{flag} {tp} " if table and (tp := tp_of(table)) else ""


def _method(engine: str, advisor: Advisor) -> Any:
    """What names the drafter in the engine's settings."""
    kind, known = advisor.drafter, drafters()
    if method := known[kind].get(engine):
        return method
    runs = ", ".join(each for each in known if engine in known[each])
    raise ConfigError(f"--drafter {kind}: {engine} runs none; choose from {runs}")


def _beyond(ranges: Ranges, engine: str, goes_on: bool = True) -> str:
    """What the engine does beyond the last range."""
    last, does = ranges[-1].last, "drafts nothing"
    if goes_on and ranges[-1].drafts:
        does = (
            "goes on with the last draft length, which may lose there: run at most "
            f"{last} requests"
        )
    return f"Chosen up to batch {last}; beyond it {engine} {does}."


ENGINES: Mapping[str, Callable[[Ranges, Advisor], Export]] = {
    "vllm": vllm,
    "sglang": sglang,
    "trtllm": trtllm,
    "llama-cpp": llama_cpp,
}

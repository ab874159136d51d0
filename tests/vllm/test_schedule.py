"""vLLM's own parser and look-up, on the schedule that is exported for it."""

import json
from itertools import product
from types import SimpleNamespace

import pytest

from evict_profile.advice.acceptance import acceptance_of
from evict_profile.advice.capture import check_captured
from evict_profile.errors import ConfigError
from tests.advice.served import SERVED, plan_of
from tests.exported import shipped_table, write_schedule

H100 = "nvidia-h100-80gb-hbm3/qwen3-30b-a3b/vllm-0.24.0-bfloat16-tp1-ep1"
PER_BATCH = "num_speculative_tokens_per_batch_size"


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "schedule.json"
    return write_schedule(shipped_table(H100), "vllm", path, 3, 5, 0)


def test_every_batch_drafts_what_was_chosen(written):
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    drafts = build_dynamic_sd_schedule_lookup(
        written.content[PER_BATCH],
        vllm_max_batch_size=256,
        vllm_num_speculative_tokens=written.content["num_speculative_tokens"],
    )
    assert {batch: drafts[batch] for batch in written.chosen} == written.chosen
    assert set(drafts[max(written.chosen) :]) == {0}


def test_the_config_takes_the_schedule(written):
    """vLLM's own class validates it; n-grams need no drafter, which is not here."""
    from vllm.config import SpeculativeConfig

    fields = written.content
    del fields["evict_profile"]
    made = SpeculativeConfig(method="ngram", prompt_lookup_max=3, **fields)
    assert made.uses_dynamic_speculative_decoding()
    taken = made.num_speculative_tokens_per_batch_size
    assert taken == [tuple(each) for each in fields[PER_BATCH]]


def test_metrics_of_vllms_own_class_are_read(tmp_path):
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

    lines = []
    for accepted in ([0, 2], [1, 3]):
        made = RequestSpecDecodeMetrics.new(3)
        for each in accepted:
            made.observe(3, each, detailed=True)
        lines.append({"metrics": {"speculative_decoding": made.to_dict()}})
    path = tmp_path / "responses.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    [found] = acceptance_of(str(path))
    assert found.committed[:4].tolist() == [1.0, 1.75, 2.25, 2.5]


@pytest.mark.parametrize("sizes", [[4, 8, 16, 44], [8, 24, 32, 40], [5], [42, 7], [3]])
def test_steps_without_a_whole_graph_are_those_that_are_refused(sizes):
    for drafts, batch in product((1, 2, 3, 6), range(1, 16)):
        try:
            check_captured(sizes, plan_of(drafts, batch), SERVED, "vllm")
        except ConfigError:
            assert not runs_whole(sizes, 1 + drafts, batch), (drafts, batch)
        else:
            assert runs_whole(sizes, 1 + drafts, batch), (drafts, batch)


def runs_whole(sizes, width, batch):
    """By vLLM's own look-up, of a manager that has captured these sizes."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    made = object.__new__(CudaGraphManager)
    compilation = SimpleNamespace(
        cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes)
    )
    made.__dict__ |= {
        "compilation_config": compilation,
        "cudagraph_mode": CUDAGraphMode.FULL_AND_PIECEWISE,
        "max_num_reqs": 64,
        "decode_query_len": width,
        "varlen_decode": False,
        "ubatch_runner": None,
        "lora_capture_cases": [0],
        "_lora_dispatch_map": {},
        "_candidates": {},
        "_capture_descs": {},
        "_graphs_captured": True,
        "vllm_config": SimpleNamespace(
            speculative_config=None,
            cache_config=SimpleNamespace(use_kda_recoverssm=False),
        ),
    }
    made._init_candidates()
    found = made.dispatch(batch, batch * width, width, 0)
    return found.cg_mode == CUDAGraphMode.FULL


def test_vllm_and_its_parser_have_the_flag():
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from evict_profile.advice.capture import FLAGS

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    taken = parser.parse_args(["--model", "m", FLAGS["vllm"], "4", "8"])
    assert taken.cudagraph_capture_sizes == [4, 8]

"""vLLM's own parser and look-up, on the schedule that is exported for it."""

import json

import pytest

from evict_profile.advice.acceptance import acceptance_of
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

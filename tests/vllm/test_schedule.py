"""vLLM's own parser and look-up, on the schedule that is exported for it."""

import json
from pathlib import Path

import pytest

from evict_profile.advice.acceptance import of_metrics, of_rate
from evict_profile.advice.advise import Advisor, schedule
from evict_profile.advice.drafting import DraftCost
from evict_profile.integrations.exporters import ExportOptions, write_format
from evict_profile.io import data_root
from evict_profile.table import CostTable

H100 = "nvidia-h100-80gb-hbm3/qwen3-30b-a3b/vllm-0.24.0-bfloat16-tp1-ep1/1.0.0.json"
RATE = of_rate(0.75)


@pytest.fixture(scope="module")
def table() -> CostTable:
    return CostTable.load(data_root() / "cost_tables" / "composed" / H100)


def test_every_batch_drafts_what_was_chosen(table: CostTable, tmp_path: Path) -> None:
    """And nothing from the first batch that was not priced to vLLM's largest."""
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    path = tmp_path / "schedule.json"
    write_format(table, "vllm-schedule", path, ExportOptions(lengths=RATE))
    fields = json.loads(path.read_text(encoding="utf-8"))
    drafts = build_dynamic_sd_schedule_lookup(
        fields["num_speculative_tokens_per_batch_size"],
        vllm_max_batch_size=256,
        vllm_num_speculative_tokens=fields["num_speculative_tokens"],
    )
    asked = Advisor(table, RATE, DraftCost(table), min(table.axes.context))
    for each in schedule(asked):
        assert set(drafts[each.first : each.last + 1]) == {each.drafts}
    assert set(drafts[asked.largest + 1 :]) == {0}


def test_the_config_takes_the_schedule(table: CostTable, tmp_path: Path) -> None:
    """vLLM's own class validates it; n-grams need no drafter, which is not here."""
    from vllm.config import SpeculativeConfig

    path = tmp_path / "schedule.json"
    write_format(table, "vllm-schedule", path, ExportOptions(lengths=RATE))
    fields = json.loads(path.read_text(encoding="utf-8"))
    del fields["evict_profile"]
    made = SpeculativeConfig(method="ngram", prompt_lookup_max=3, **fields)
    assert made.uses_dynamic_speculative_decoding()
    assert made.num_speculative_tokens_per_batch_size == [
        tuple(each) for each in fields["num_speculative_tokens_per_batch_size"]
    ]


def test_metrics_of_vllms_own_class_are_read(tmp_path: Path) -> None:
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

    lines = []
    for accepted in ([0, 2], [1, 3]):
        made = RequestSpecDecodeMetrics.new(3)
        for each in accepted:
            made.observe(3, each, detailed=True)
        lines.append({"metrics": {"speculative_decoding": made.to_dict()}})
    path = tmp_path / "responses.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert of_metrics(path).committed.tolist() == [1.0, 1.75, 2.25, 2.5]

"""SGLang's own adaptive parameters, on the schedule that is exported for them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor, schedule
from evict_profile.advice.drafting import DraftCost
from evict_profile.integrations.exporters import ExportOptions, write_format
from evict_profile.io import data_root
from evict_profile.table import CostTable

H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1/1.0.0.json"
RATE = of_rate(0.75)


def test_every_batch_takes_its_own_steps(tmp_path: Path) -> None:
    """Read and routed by `AdaptiveSpeculativeParams`; the largest is the start."""
    from sglang.srt.speculative import adaptive_spec_params as adaptive

    table = CostTable.load(data_root() / "cost_tables" / "composed" / H200)
    path = tmp_path / "adaptive.json"
    made = write_format(table, "sglang-adaptive", path, ExportOptions(lengths=RATE))
    asked = Advisor(table, RATE, DraftCost(table), min(table.axes.context))
    steps = adaptive.resolve_candidate_steps_from_config(str(path))
    assert f"--speculative-num-steps {max(steps)} " in made.command
    params = adaptive.AdaptiveSpeculativeParams(max(steps), str(path))
    for each in schedule(asked):
        for batch in (each.first, each.last):
            assert params.get_steps_for_batch(batch) == each.drafts
    assert params.get_steps_for_batch(asked.largest + 1) == 0
    for _ in range(50):
        assert params.on_verify_complete([0] * 4, 4) is None, "nothing adapts"


def test_a_server_resolves_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the command are among the candidates, or SGLang would refuse."""
    from sglang.srt.arg_groups import speculative_hook as hook

    table = CostTable.load(data_root() / "cost_tables" / "composed" / H200)
    path = tmp_path / "adaptive.json"
    made = write_format(table, "sglang-adaptive", path, ExportOptions(lengths=RATE))
    words = made.command.split()
    steps = int(words[words.index("--speculative-num-steps") + 1])
    args = SimpleNamespace(
        speculative_adaptive_config=str(path),
        speculative_eagle_topk=1,
        speculative_num_steps=steps,
    )
    declared: dict[str, object] = {}
    monkeypatch.setattr(hook, "resolving_view", lambda given: given)
    monkeypatch.setattr(
        hook, "declare_resolution", lambda _, __, **values: declared.update(values)
    )
    hook._init_adaptive_speculative_params(args)  # type: ignore[arg-type]
    assert declared == {"speculative_num_draft_tokens": steps + 1}

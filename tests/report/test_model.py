"""What was read of a model is shown before anything is measured or estimated."""

import json
from pathlib import Path

import pytest

from evict_profile.config import load_model
from evict_profile.config.load import is_model
from evict_profile.report.model import model_line
from tests.command import evict

SHIPPED = Path(__file__).parents[2] / "cost_tables"


def test_a_line_states_what_a_cost_depends_on():
    assert model_line(load_model("qwen3-30b-a3b")) == (
        "qwen3-30b-a3b: 128 experts, top 8, 48 MoE layers of 48, hidden 2,048, expert "
        "width 768, gqa 32/4 x 128, bfloat16, 30.5 B parameters, 3.4 B active"
    )
    assert model_line(load_model("GLM-4.6"), "zai-org/GLM-4.6").endswith(
        "active; GLM-4.6 has the shape of glm-4.5"
    )
    line = model_line(load_model("deepseek-v3"))
    assert "58 MoE layers of 61" in line
    assert "mla 128 x 128, latent 512 + 64, fp8_block" in line


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b"])
def test_show_states_a_model_in_words_and_as_json(name, tmp_path):
    shown = evict("show", name, folder=tmp_path).stdout
    model = load_model(name)
    document = json.loads(evict("show", name, "--json", folder=tmp_path).stdout)
    assert document["active_parameters"] == model.active_parameters
    assert document["checkpoint_dtype"] == model.checkpoint_dtype
    assert document["checkpoint_bytes_per_expert"] > 0
    assert shown.startswith(model_line(model))
    assert f"{model.active_parameters:,}" in shown
    assert f"source: {model.source}" in shown
    assert all(f"note: {caveat}" in shown for caveat in model.caveats(None))
    kinds = [line.split()[-1] for line in shown.splitlines() if "].kind" in line]
    assert kinds == [other.kind for other in model.other_layers]


def test_no_table_and_no_tree_is_taken_for_a_model(tmp_path):
    tables = [*SHIPPED.rglob("*.json")][:3]
    assert tables and not any(map(is_model, [*tables, SHIPPED, tmp_path]))
    assert not is_model(tmp_path / "missing.json")
    broken = tmp_path / "config.json"
    broken.write_text("{")
    assert not is_model(broken)
    assert is_model(Path("Qwen/Qwen3-30B-A3B")) and is_model(Path("own.gguf"))

"""Counts of the reader agree with transformers' own class of the same config.

`parameters.json` holds a config of each family of `configs/families.yaml` that
transformers 5.24.0 has, and what its class counts on the meta device (`recount.py`).
"""

import json
from pathlib import Path

import pytest

from evict_profile.config.families import known_families
from evict_profile.config.huggingface import model_mapping
from evict_profile.config.model import ModelSpec
from evict_profile.records import parse
from tests.config.recount import STORED, counted

COUNTS = json.loads(STORED.read_text())
NOT_IN_TRANSFORMERS = {"bailing_moe", "bailing_moe_v2", "bailing_moe_v2_5"}
NOT_IN_TRANSFORMERS |= {"deepseek_ref", "kimi_k2", "minimax_m3"}
# It builds no language model of these configs alone.
NOT_BUILT = {"mistral4", "qwen3_omni_moe_text", "step3p5"}


def test_each_family_is_counted():
    rows = known_families().families
    read = {name for name, family in rows.items() if not family.refused}
    assert read - NOT_IN_TRANSFORMERS - NOT_BUILT == read & COUNTS.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_those_of_transformers(name):
    stored = COUNTS[name]
    model = parse(
        ModelSpec, model_mapping(stored["config"], Path("a-model") / name), name
    )
    assert model.total_parameters == pytest.approx(stored["total"], rel=0.005)
    assert model.active_parameters == pytest.approx(stored["active"], rel=0.01)
    assert not model.notes or "unknown" not in model.notes[0]


@pytest.mark.parametrize("name", COUNTS)
def test_transformers_counts_what_is_stored(name):
    version = pytest.importorskip("transformers", reason="no transformers").__version__
    counts = counted(COUNTS[name]["config"])
    if counts is None:
        pytest.skip(f"transformers {version} lacks the family")
    assert counts == (COUNTS[name]["total"], COUNTS[name]["active"])

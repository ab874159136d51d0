"""One function writes every format, and says what was lost."""

import json
from pathlib import Path

import pytest

from evict_profile.errors import ConfigError
from evict_profile.integrations.formats import FORMATS, write_format
from evict_profile.table import load_table


@pytest.mark.parametrize("name", FORMATS)
def test_the_file_says_where_it_came_from(
    saved_table: Path, tmp_path: Path, name: str
) -> None:
    """Key, samples, context and the printed note, in a folder that is made for it."""
    out = tmp_path / "new" / "prices.json"
    note = write_format(load_table(saved_table), name, out, context=256, draft_ms=1.0)
    origin = json.loads(out.read_text(encoding="utf-8"))["evict_profile"]
    signed = json.loads(saved_table.read_text(encoding="utf-8"))
    assert origin["samples_sha256"] == signed["provenance"]["samples_sha256"]
    assert origin["key"] == signed["key"]
    assert origin["context"] == 256
    assert "\n".join(origin["note"]) == note


def test_an_unknown_format_is_refused(saved_table: Path, tmp_path: Path) -> None:
    """With those that exist."""
    with pytest.raises(ConfigError, match="choose one of sglang-sps, "):
        write_format(load_table(saved_table), "csv", tmp_path / "x")


@pytest.mark.parametrize("draft_ms", [0.0, -1.0, float("nan"), 6e4 + 1.0, 1e308])
def test_a_draft_time_that_is_none_is_refused(
    saved_table: Path, tmp_path: Path, draft_ms: float
) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match="above 0 and at most 60000"):
        write_format(
            load_table(saved_table), "vllm-curves", tmp_path / "x", draft_ms=draft_ms
        )
    assert not (tmp_path / "x").exists()

"""What a sweep says of SGLang."""

from pathlib import Path

import pytest
import yaml

from evict_profile.config import load_sweep
from evict_profile.errors import ConfigError


def written(folder: Path, **changes: object) -> str:
    """A sweep's file with these keys."""
    content = {
        "name": "written",
        "grid": {"width": [1, 2], "union": 2, "context": [8]},
        **changes,
    }
    path = folder / "written.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.mark.parametrize("name", ["sglang", "sglang-tiny"])
def test_the_sweeps_of_sglang_time_whole_forwards(name: str) -> None:
    spec = load_sweep(name)
    assert spec.whole
    assert spec.runner == "sglang_verify"


def test_other_sweeps_time_parts(tmp_path: Path) -> None:
    assert not load_sweep(written(tmp_path)).whole


@pytest.mark.parametrize("drafts", [{"topk": 1}, {"steps": 0}])
def test_a_chain_is_refused(tmp_path: Path, drafts: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="a chain has no tree to cut"):
        load_sweep(written(tmp_path, sglang=drafts))


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="modle"):
        load_sweep(written(tmp_path, sglang={"modle": "somewhere"}))

"""Public rows are read from a zip or a folder, checked, and never run."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import open_source
from tests.sources import wheel as made
from tests.sources.wheel import GPU, moe_rows, write_rows, write_wheel

MOE = (GPU, "moe", made.ENGINE, made.ENGINE_VERSION)


def refusal(root):
    """The sentence that reading the MoE rows of a wheel ends with."""
    with pytest.raises(ConfigError) as caught:
        open_source(root).rows(*MOE)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_zip_holds_the_same_rows_as_its_folder(wheel, tmp_path):
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", wheel)
    sources = [open_source(wheel), open_source(Path(packed))]
    folder, archive = (s.rows(*MOE) for s in sources)
    pd.testing.assert_frame_equal(folder, archive)
    assert len(folder) == len(made.TOKENS)
    assert sources[0].read == sources[1].read
    [(path, sha256)] = sources[0].read.items()
    assert path.endswith("moe_perf.parquet") and len(sha256) == 64


def test_what_is_no_such_release_is_refused(tmp_path):
    write_wheel(tmp_path / "newer", version="0.13.0")
    (tmp_path / "some.whl").write_text("no wheel")
    for name, sentence in (
        ("newer", r"is aiconfigurator-core 0\.13\.0.*0\.12\.0"),
        ("some.whl", "is no wheel"),
        ("", "holds no aiconfigurator-core and no aisimulate"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            open_source(tmp_path / name)


def test_rows_that_may_mean_something_else_are_refused(tmp_path):
    """An unknown column, a missing one, and half a file."""
    root = write_wheel(tmp_path / "wheel")
    write_rows(root, "moe", moe_rows(cold=True))
    assert "has ['cold'], so its rows may mean something else" in refusal(root)
    rows = [{k: v for k, v in row.items() if k != "topk"} for row in moe_rows()]
    write_rows(root, "moe", rows)
    assert "lacks ['topk']" in refusal(root)
    path = write_rows(root, "moe", moe_rows())
    path.write_bytes(path.read_bytes()[:1000])
    assert "moe_perf.parquet: is damaged" in refusal(root)


def test_rows_of_the_version_before_stand_in(tmp_path):
    """A release follows its candidates."""
    root = write_wheel(tmp_path / "wheel")
    for version in ("1.3.0rc10", "1.3.0rc9", "1.3.0", "1.4.0"):
        write_rows(root, "moe", moe_rows(), engine="trtllm", version=version)
    source = open_source(root)
    asked = ("1.3.1", "1.3.0rc20", "1.3.0rc10", "1.2.0")
    found = [source.version_for(GPU, "moe", "trtllm", version) for version in asked]
    assert found == ["1.3.0", "1.3.0rc10", "1.3.0rc10", "1.3.0rc9"]
    with pytest.raises(ConfigError, match=f"vllm on {GPU}: .* no rows of moe"):
        source.version_for(GPU, "moe", "vllm", "1")


NEXT, NEXT_VERSION = "aisimulate", "0.13.0.dev202610270000000085"
COMMIT = "dev-1aa0e962b206102b7c439a4a0c4981cfec6e87bc"


@pytest.fixture
def successor(tmp_path):
    return write_wheel(tmp_path / "next", NEXT_VERSION, NEXT)


def test_the_successor_is_read_from_its_own_folders(successor, wheel):
    source = open_source(successor)
    assert source.name == f"{NEXT} {NEXT_VERSION}"
    pd.testing.assert_frame_equal(source.rows(*MOE), open_source(wheel).rows(*MOE))
    assert {path.split("/")[0] for path in source.read} == {"aisimulate_core"}


def test_rows_that_are_not_eligible_are_left_out_and_counted(successor):
    rows = [row | {"default_eligible": row["num_tokens"] > 1} for row in moe_rows()]
    write_rows(successor, "moe", rows, package=NEXT)
    source = open_source(successor)
    assert source.rows(*MOE)["num_tokens"].min() == 2
    assert [*source.ineligible.values()] == [1]


def test_rows_between_releases_are_left_out(successor):
    write_rows(successor, "moe", moe_rows(), version=COMMIT, package=NEXT)
    source = open_source(successor)
    assert source.engines(GPU, "moe") == [(made.ENGINE, made.ENGINE_VERSION)]

"""A table is found by its exact key, the newest first; a near miss is explained."""

import shutil
from pathlib import Path

import pytest

from evict_profile.errors import TableError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import Fitted
from evict_profile.records import to_mapping
from evict_profile.table import CostTable, Key, find_table


@pytest.fixture(scope="module")
def exported(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of one table."""
    return export_table(fitted, tmp_path_factory.mktemp("tables"))[1]


def test_the_newest_of_the_same_key_is_found(exported: Path) -> None:
    """1.0.10 comes after 1.0.9, though not as text."""
    for version in ("1.0.9", "1.0.10"):
        shutil.copy(exported, exported.with_name(f"{version}.json"))
    running = to_mapping(CostTable.load(exported).key)
    assert find_table(exported.parents[3], running).path.stem == "1.0.10"


def test_a_near_miss_names_the_difference(exported: Path) -> None:
    """Another engine version finds nothing, and is told what the nearest table is."""
    running = {**to_mapping(CostTable.load(exported).key), "engine_version": "2"}
    with pytest.raises(TableError, match=r"engine_version: 2 here, 1 there.*profile"):
        find_table(exported.parents[3], running)


def test_an_empty_tree_is_told_how_to_fill_it(tmp_path: Path) -> None:
    """With the model that runs."""
    running = {**dict.fromkeys(Key.names(), "x"), "model": "olmoe"}
    with pytest.raises(TableError, match="evict-profile profile --model olmoe"):
        find_table(tmp_path, running)


def test_half_a_key_is_refused(tmp_path: Path) -> None:
    """A lookup that is exact needs every field."""
    with pytest.raises(TableError, match="lacks gpu, model"):
        find_table(tmp_path, {})


def test_a_damaged_neighbour_does_not_hide_a_table(exported: Path) -> None:
    """It matches nothing, and that is all."""
    broken = exported.parents[2] / "other" / "engine" / "1.0.0.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    found = find_table(exported.parents[3], to_mapping(CostTable.load(exported).key))
    assert found.key.model == "tiny"

"""Served tables are found by name in the folders of the search path."""

from pathlib import Path

import pytest

from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.served.make import served_table
from evict_profile.served.run import Deployment
from evict_profile.served.search import (
    find_served,
    load_any,
    served_tables,
    versions_of,
)
from evict_profile.served.table import ServedTable
from evict_profile.table import SEARCH_PATH, CostTable
from tests.served.runs import run, saved


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree in which a table of one server is saved twice."""
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen/Qwen3.6-35B-A3B", "kimi-k2"):
        for _ in range(2):
            save(name)
    return tmp_path / "cost_tables"


def save(model, gpu="RTX 4090", **facts):
    about = Deployment(engine="vllm", **facts)
    runs = [run(1, k, 10.0 + k, deployment=about) for k in (0, 3)]
    return saved(served_table(runs, {}, model, gpu), SELF)


SELF = Path("cost_tables")


@pytest.mark.usefixtures("tree")
def test_the_newest_of_a_name_is_found_however_it_is_spelled():
    """What was just made is found."""
    for model in ("qwen3.6-35b-a3b", "Qwen/Qwen3.6-35B-A3B"):
        for gpu in ("rtx-4090", "RTX 4090", "rtx4090", "4090"):
            found = find_served(model, gpu, "vllm")
            assert (found.key.model, found.version) == ("Qwen/Qwen3.6-35B-A3B", "1.0.1")
    assert find_served("qwen3.6-35b-a3b", "4090").path.is_file()


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize(
    "names",
    [
        ("qwen3.5-35b-a3b", "rtx-4090", "vllm"),
        ("kimi-k2.7-code", "rtx-4090", "vllm"),
        ("kimi-k2", "rtx-3090", "vllm"),
        ("kimi-k2", "rtx-4090", "sglang"),
    ],
)
def test_another_name_finds_nothing(names):
    assert find_served(*names) is None


@pytest.mark.usefixtures("tree")
def test_two_deployments_of_one_name_are_listed():
    save("kimi-k2", tp=8)
    with pytest.raises(DataError, match="2 served tables are of kimi-k2 on 4090"):
        find_served("kimi-k2", "4090")


def test_the_search_path_is_that_of_cost_tables(tree, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv(SEARCH_PATH, "empty")
    assert find_served("kimi-k2", "4090") is None
    monkeypatch.setenv(SEARCH_PATH, str(tree))
    assert find_served("kimi-k2", "4090")


def test_a_damaged_table_hides_no_other(tree):
    first = next(tree.rglob("1.0.0.json"))
    first.write_text("{")
    assert len([*served_tables([tree])]) == 3


def test_versions_are_of_one_deployment_and_in_order(tree):
    home = next(tree.rglob("1.0.1.json")).parent
    newest = ServedTable.load(home / "1.0.1.json")
    replace(newest, version="1.0.10").save(home / "1.0.10.json")
    other = replace(newest.key, tp=8)
    replace(newest, key=other, version="1.0.2").save(home / "1.0.2.json")
    found = [table.version for table in versions_of(newest.key, home)]
    assert found == ["1.0.0", "1.0.1", "1.0.10"]


def test_a_table_of_either_kind_is_read(tree, saved_table):
    assert load_any(next(tree.rglob("1.0.0.json"))).version == "1.0.0"
    assert isinstance(load_any(saved_table), CostTable)

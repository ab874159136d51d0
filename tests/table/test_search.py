"""A table is found by its exact key, or among all; a near miss is explained."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evict_profile.errors import DataError
from evict_profile.io import data_root
from evict_profile.records import to_mapping
from evict_profile.table import (
    CostTable,
    Key,
    find_table,
    search_path,
    tables_in,
)
from evict_profile.table.search import device_name, of_names
from tests.command import evict


def tree_of(table):
    """A tree of tables that holds a copy of one."""
    home = table.parent / "tree" / "gpu" / "model" / "engine"
    home.mkdir(parents=True)
    shutil.copy(table, home)
    return table.parent / "tree"


def key_of(table, **other):
    return {**to_mapping(CostTable.load(table).key), **other}


class TestLookup:
    """By the key of what runs."""

    def test_the_newest_of_the_same_key_is_found(self, saved_table):
        """1.0.10 comes after 1.0.9, though not as text; what is damaged hides none."""
        tree = tree_of(saved_table)
        home = tree / "gpu" / "model" / "engine"
        for version in ("1.0.9", "1.0.10"):
            shutil.copy(saved_table, home / f"{version}.json")
        (home / "2.0.0.json").write_text("{")
        document = json.loads(saved_table.read_text())
        (home / "3.0.0.json").write_text(json.dumps({**document, "axes": 5}))
        assert find_table(tree, key_of(saved_table)).path.stem == "1.0.10"

    def test_a_near_miss_names_the_difference(self, saved_table):
        """Another engine version finds nothing, and is told what the nearest is."""
        running = key_of(saved_table, engine_version="2")
        with pytest.raises(DataError, match=r"engine_version: 2 here, 1 there.*profil"):
            find_table(tree_of(saved_table), running)

    def test_an_empty_tree_is_told_how_to_fill_it(self, tmp_path):
        """Half a key is refused."""
        running = {**dict.fromkeys(Key.names(), "x"), "model": "olmoe"}
        with pytest.raises(DataError, match="evict-profile sweep olmoe"):
            find_table(tmp_path, running)
        with pytest.raises(DataError, match="lacks gpu, model"):
            find_table(tmp_path, {})

    def test_folders_are_separated_as_in_path(self, tmp_path, monkeypatch):
        """Without any, the shipped tables are searched."""
        monkeypatch.chdir(tmp_path)
        named = {"EVICT_PROFILE_TABLES": f"a{os.pathsep}{os.pathsep}b"}
        assert search_path(named) == (Path("a"), Path("b"))
        assert search_path({}) == (data_root() / "cost_tables",)
        with pytest.raises(DataError, match="or fix EVICT_PROFILE_TABLES"):
            tables_in([tmp_path / "none"])

    def test_own_tables_are_searched_before_the_shipped(self, tmp_path, monkeypatch):
        """They lie where `sweep` and `calibrate` write; a variable replaces both."""
        (tmp_path / "cost_tables").mkdir()
        monkeypatch.chdir(tmp_path)
        shipped = data_root() / "cost_tables"
        assert search_path({}) == (Path("cost_tables"), shipped)
        assert search_path({"EVICT_PROFILE_TABLES": "a"}) == (Path("a"),)

    def test_a_checkout_is_searched_once(self, monkeypatch):
        """Its ./cost_tables is the shipped folder."""
        monkeypatch.chdir(data_root())
        assert search_path({}) == (data_root() / "cost_tables",)


class TestIndex:
    """By the names of model, GPU and engine."""

    def test_a_device_has_the_name_of_engines_files(self):
        assert device_name("NVIDIA H200") == "NVIDIA_H200"
        assert device_name("AMD  MI300X/OAM") == "AMD_MI300X_OAM"

    @pytest.mark.parametrize(
        ("names", "count"),
        [
            ((None, "a test", None), 1),
            ((None, "A_TEST", None), 1),
            ((None, "test", None), 1),
            ((None, "tes", None), 0),
            (("Org/Tiny-Instruct", None, None), 1),
            (("tiny-2", None, None), 0),
            ((None, None, "Scripted"), 1),
            (("tiny", "a test", "vllm"), 0),
        ],
    )
    def test_tables_go_by_any_of_their_names(self, saved_table, names, count):
        """A near miss is not taken."""
        assert len(of_names(tables_in([saved_table.parent]), *names)) == count

    def test_what_is_no_table_does_not_hide_one(self, saved_table):
        """A damaged one says why; other JSON is no table and is left out."""
        text = saved_table.read_text(encoding="utf-8")
        broken = saved_table.with_name("1.0.1.json")
        broken.write_text(text.replace("a test", "a tent"), encoding="utf-8")
        saved_table.with_name("curves.json").write_text("{}", encoding="utf-8")
        good, bad = tables_in([saved_table.parent])
        assert good.table and not bad.table
        assert "sha256" in bad.refused

    def test_age_counts_from_the_end_of_the_sweep(self, saved_table, composed_path):
        """A pipe is not waited for."""
        os.mkfifo(saved_table.with_name("2.0.0.json"))
        (found,) = tables_in([saved_table.parent])
        assert found.path == saved_table
        assert found.age_days(datetime.now(UTC) + timedelta(days=9)) >= 9
        [composed] = tables_in([composed_path.parent])
        assert composed.age_days() is None

    def test_the_command_lists_the_tables_of_a_server(self, shipped_root, tmp_path):
        names = ("--model", "Qwen/Qwen3-30B-A3B", "--gpu", "h200", "--engine", "sglang")
        words = ("show", shipped_root / "cost_tables", *names, "--json")
        found = json.loads(evict(*words, folder=tmp_path).output)
        assert {(each["model"], each["gpu"], each["engine"]) for each in found} == {
            ("qwen3-30b-a3b", "NVIDIA H200", "sglang")
        }
        assert sorted(each["tp"] for each in found) == [1, 4]

    def test_the_command_lists_key_error_and_gates(self, saved_table, tmp_path):
        tree = tree_of(saved_table)
        done = evict("show", tree, folder=tmp_path)
        [line] = [row for row in done.output.splitlines() if "1.0.0.json" in row]
        assert "%" in line and " of " in line and " d " in line
        assert "a_test in " in done.output
        assert max(map(len, done.output.splitlines())) <= 100
        done = evict("show", tree, "--json", folder=tmp_path)
        [found] = json.loads(done.output)
        assert found["gpu"] == "a test"
        assert CostTable.load(tmp_path / found["table"]).version == "1.0.0"

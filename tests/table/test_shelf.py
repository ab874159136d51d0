"""The index of tables, and statements that one may be reused."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evict_profile.errors import TableError
from evict_profile.io import data_root
from evict_profile.records import to_mapping
from evict_profile.table import CostTable, find_table, of_device, search_path, tables_in
from evict_profile.table.shelf import device_name
from tests.command import evict, refused

STATEMENT = ("--who", "A. Person", "--why", "same kernels", "--recheck", "+0.4 %, same")


class TestSearchPath:
    """`EVICT_PROFILE_TABLES`."""

    def test_folders_are_separated_as_in_path(self) -> None:
        named = {"EVICT_PROFILE_TABLES": f"a{os.pathsep}{os.pathsep}b"}
        assert search_path(named) == (Path("a"), Path("b"))

    def test_without_it_the_shipped_tables_are_searched(self) -> None:
        assert search_path({}) == (data_root() / "cost_tables",)

    def test_a_folder_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(TableError, match="mend EVICT_PROFILE_TABLES"):
            tables_in([tmp_path / "none"])


class TestIndex:
    """By what engines call the device."""

    @pytest.mark.parametrize(
        ("gpu", "name"),
        [("NVIDIA H200", "NVIDIA_H200"), ("AMD  MI300X/OAM", "AMD_MI300X_OAM")],
    )
    def test_names_are_those_of_the_engines(self, gpu: str, name: str) -> None:
        assert device_name(gpu) == name

    def test_a_near_miss_is_named_and_not_taken(self, saved_table: Path) -> None:
        """The device of the known run is "a test"."""
        found = tables_in([saved_table.parent])
        assert len(of_device(found, "a test")) == len(of_device(found, "a_test")) == 1
        with pytest.raises(TableError, match="no table is of a_tent; there are a_test"):
            of_device(found, "a_tent")

    def test_what_is_no_table_does_not_hide_one(self, saved_table: Path) -> None:
        """A damaged one says why; other JSON is no table and is left out."""
        text = saved_table.read_text(encoding="utf-8")
        broken = saved_table.with_name("1.0.1.json")
        broken.write_text(text.replace("a test", "a tent"), encoding="utf-8")
        saved_table.with_name("curves.json").write_text("{}", encoding="utf-8")
        good, bad = tables_in([saved_table.parent])
        assert good.table and not bad.table
        assert "sha256" in bad.refused

    def test_age_counts_from_the_end_of_the_sweep(
        self, saved_table: Path, composed_path: Path
    ) -> None:
        (found,) = tables_in([saved_table.parent])
        assert found.age_days(datetime.now(UTC) + timedelta(days=9)) >= 9
        [composed] = tables_in([composed_path.parent])
        assert composed.age_days() is None

    def test_the_command_lists_key_error_and_gates(
        self, saved_table: Path, tmp_path: Path
    ) -> None:
        done = evict("tables", "--folder", saved_table.parent, folder=tmp_path)
        [line] = [row for row in done.output.splitlines() if "1.0.0.json" in row]
        assert line.split()[0] == "a_test"
        assert "scripted" in line and "%" in line and " of " in line
        words = ("tables", "--folder", saved_table.parent, "--device", "NVIDIA_H20")
        assert "no table is of NVIDIA_H20" in refused(*words, folder=tmp_path)


class TestReuse:
    """A table of one version that serves another, because someone says so."""

    @pytest.fixture
    def stated(self, saved_table: Path) -> Path:
        words = ("reuse", saved_table, "--engine-version", "2", *STATEMENT)
        done = evict(*words, folder=saved_table.parent)
        assert "reused for 2, says A. Person" in done.output
        return saved_table.with_name("1.0.1.json")

    def test_it_serves_the_stated_version_with_a_caveat(self, stated: Path) -> None:
        own = to_mapping(CostTable.load(stated).key)
        assert not CostTable.load(stated, own).caveats
        table = CostTable.load(stated, {**own, "engine_version": "2"})
        [caveat] = table.price(1, 64).caveats
        assert "same kernels (recheck: +0.4 %, same)" in caveat

    @pytest.mark.parametrize("other", [{"engine_version": "3"}, {"gpu": "b"}])
    def test_it_bridges_nothing_else(self, stated: Path, other: dict[str, str]) -> None:
        own = {**to_mapping(CostTable.load(stated).key), "engine_version": "2"}
        with pytest.raises(TableError, match="prices another engine"):
            CostTable.load(stated, {**own, **other})

    def test_the_hash_covers_it(self, stated: Path) -> None:
        text = stated.read_text(encoding="utf-8")
        stated.write_text(text.replace("A. Person", "B. Person"), encoding="utf-8")
        with pytest.raises(TableError, match="sha256"):
            CostTable.load(stated)

    def test_it_is_found_and_shown(self, stated: Path, tmp_path: Path) -> None:
        tree = tmp_path / "tree" / "a" / "b" / "c"
        tree.mkdir(parents=True)
        stated.rename(tree / "1.0.1.json")
        own = to_mapping(CostTable.load(tree / "1.0.1.json").key)
        running = {**own, "engine_version": "2"}
        assert find_table(tmp_path / "tree", running).reuse[0].who == "A. Person"
        for words in (("show", tree / "1.0.1.json"), ("tables", "--folder", tree)):
            assert "says A. Person" in evict(*words, folder=tmp_path).output

    def test_half_a_statement_is_refused(self, saved_table: Path) -> None:
        words = ("reuse", saved_table, "--engine-version", "2", *STATEMENT[:-1], " ")
        told = refused(*words, folder=saved_table.parent)
        assert "reuse.recheck must say something" in told
        words = ("reuse", saved_table, "--engine-version", "1", *STATEMENT)
        assert "serves scripted 1 already" in refused(*words, folder=saved_table.parent)

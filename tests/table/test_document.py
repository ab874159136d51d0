"""The table's file: signed, versioned, strict."""

import json
from pathlib import Path

import pytest

from evict_profile.errors import DataError
from evict_profile.records import digest, replace
from evict_profile.table import CostTable, Reuse, files_of, slug, version_of
from evict_profile.table.document import as_text
from tests.shipped import tracked


def edited(table, **changes):
    document = {**json.loads(table.read_text()), **changes}
    document.pop("sha256")
    document["sha256"] = digest(document)
    copy = table.with_name("edited.json")
    copy.write_text(json.dumps(document))
    return copy


def test_the_hash_is_over_the_compact_document(saved_table):
    """As design says: sorted keys, compact separators, UTF-8, without the field."""
    document = json.loads(saved_table.read_text(encoding="utf-8"))
    stated = document.pop("sha256")
    assert stated == digest(document)
    assert document["schema"] == "evict-cost-table/4"


def test_a_table_that_is_read_and_saved_is_the_same(workload_table):
    """Byte for byte, so that its hash still names it."""
    again = workload_table.with_name("again.json")
    CostTable.load(workload_table).save(again)
    assert again.read_bytes() == workload_table.read_bytes()


def test_a_table_is_named_by_its_file(saved_table):
    """Also where a later version writes more: what its sweep knows by default. What is
    changed in memory is another table."""
    made = json.loads(saved_table.read_text())["provenance"]
    del made["sweep"]["sessions"]
    old = edited(saved_table, provenance=made)
    table = CostTable.load(old)
    assert table.sha256 == json.loads(old.read_text())["sha256"]
    newer = replace(table, version="1.0.1")
    newer.save(old)
    assert newer.sha256 == json.loads(old.read_text())["sha256"] != table.sha256


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text[: len(text) // 2], "not a whole JSON document"),
        (lambda text: "[" * 100_000, "not a whole JSON document"),
        (lambda text: "[]", "it holds no mapping"),
        (lambda text: text.replace("1.0.0", "1.0.7"), "does not match its sha256"),
        (lambda text: text.replace("1.0.0", r"\ud800"), "does not match its sha256"),
        (lambda text: '{"schema": "evict-cost-table/9"}', "reads evict-cost-table/4"),
        (lambda text: '{"schema": "evict-replay/1"}', r"give a \.json that"),
        (lambda text: '{"schema": 7}', r"is no cost table; give a \.json that"),
        (lambda text: "{}", r"is no cost table; give a \.json that"),
    ],
)
def test_what_is_no_whole_table_is_refused(saved_table, change, sentence):
    """Cut, nested without end, edited, without a digest, newer, or another document."""
    saved_table.write_text(change(saved_table.read_text()))
    with pytest.raises(DataError, match=sentence):
        CostTable.load(saved_table)


def test_a_folder_is_no_table(tmp_path):
    """The command can be pasted whatever the folder is called."""
    (run := tmp_path / "my run").mkdir()
    with pytest.raises(DataError, match=r"evict-profile export '/.*/my run'$"):
        CostTable.load(run)


def test_a_table_is_its_file_and_its_samples():
    """What no command may write to while it reads the table."""
    assert files_of(Path("a/1.0.0.json")) == (
        Path("a/1.0.0.json"),
        Path("a/1.0.0.parquet"),
    )
    assert files_of(Path()) == ()


def test_an_unknown_field_is_refused(saved_table):
    with pytest.raises(DataError, match="unknown key 'colour'"):
        CostTable.load(edited(saved_table, colour="red"))


def test_staircases_stand_on_one_line_each(saved_table):
    """So that a diff of two tables shows which staircase moved."""
    lines = [
        line for line in saved_table.read_text().splitlines() if "step_cost_us" in line
    ]
    assert len(lines) == 4
    assert all(line.rstrip(",").endswith("]") for line in lines)


def test_the_shipped_tables_are_written_as_they_are():
    """Byte for byte: a release that writes otherwise would change every file."""
    for path in tracked("cost_tables/*.json"):
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        del document["sha256"]
        assert as_text(document) == text


def test_a_statement_of_reuse_may_hold_brackets(saved_table):
    """What looks like a list of numbers in a text stays as it was written."""
    table = CostTable.load(saved_table)
    reuse = Reuse("2", "us", "see ticket [ 42 ]", "none", "2026-11-22")
    replace(table, reuse=(reuse,)).save(saved_table)
    assert CostTable.load(saved_table).reuse == (reuse,)


def test_what_is_no_number_is_written_as_null(saved_table):
    """An older sweep may have stored that its union implies infinite bandwidth."""
    table = CostTable.load(saved_table)
    test = {**table.provenance.union_test, "implied_gbps": float("inf")}
    made = replace(table.provenance, union_test=test)
    table = replace(table, provenance=made)
    table.save(saved_table)
    again = CostTable.load(saved_table)
    assert again.provenance.union_test["implied_gbps"] is None
    assert again.sha256 == table.sha256


def test_names_become_folders():
    assert slug("Intel(R) Xeon(R) CPU @ 2.50GHz") == "intel-xeon-cpu-2.50ghz"
    assert slug("NVIDIA H200") == "nvidia-h200"
    assert slug("模型_甲") == "模型-甲"


@pytest.mark.parametrize("name", ["..", ".", "", "@ @"])
def test_a_name_that_is_no_folder_is_refused(name):
    """It would lie above the tree, or hold the tables of several models."""
    with pytest.raises(DataError, match="one with a letter or a digit"):
        slug(name)


def test_versions_order_as_numbers():
    """1.0.10 is after 1.0.9."""
    assert version_of("1.0.10") > version_of("1.0.9")

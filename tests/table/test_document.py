"""The table's file: signed, versioned, strict."""

import json
from pathlib import Path

import pytest

from evict_profile.errors import DataError
from evict_profile.records import digest, replace
from evict_profile.table import CostTable, files_of, slug, version_of
from evict_profile.table.document import as_text
from tests.shipped import tracked


def signed(text, **changes):
    document = {**json.loads(text), **changes}
    document.pop("sha256")
    return json.dumps({**document, "sha256": digest(document)})


def test_the_hash_is_over_the_compact_document(saved_table):
    """As design says: sorted keys, compact separators, UTF-8, without the field.

    Staircases stand on one line each, so that a diff of two tables shows which moved.
    """
    text = saved_table.read_text(encoding="utf-8")
    document = json.loads(text)
    stated = document.pop("sha256")
    assert stated == digest(document)
    assert document["schema"] == "evict-cost-table/4"
    lines = [line for line in text.splitlines() if "step_cost_us" in line]
    assert len(lines) == 4
    assert all(line.rstrip(",").endswith("]") for line in lines)


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
    old = saved_table.with_name("edited.json")
    old.write_text(signed(saved_table.read_text(), provenance=made))
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
        (lambda text: signed(text, colour="red"), "unknown key 'colour'"),
    ],
)
def test_what_is_no_whole_table_is_refused(saved_table, change, sentence):
    """Cut, nested without end, edited, without a digest, newer, or another document."""
    saved_table.write_text(change(saved_table.read_text()))
    with pytest.raises(DataError, match=sentence):
        CostTable.load(saved_table)


def test_a_table_is_its_file_and_its_samples(tmp_path):
    """What no command may write to while it reads the table.

    A folder is none; the command can be pasted whatever the folder is called.
    """
    own = Path("a/1.0.0.json")
    assert files_of(own) == (own, Path("a/1.0.0.parquet"))
    assert files_of(Path()) == ()
    (run := tmp_path / "my run").mkdir()
    (run / "sweep.json").touch()
    sentence = r"evict-profile fit ./.*/my run. --tables cost_tables$"
    with pytest.raises(DataError, match=sentence):
        CostTable.load(run)


def test_tables_in_a_folder_that_is_no_run_are_listed_by_show(tmp_path):
    with pytest.raises(DataError, match="this lists: evict-profile show /"):
        CostTable.load(tmp_path)


def test_the_shipped_tables_are_written_as_they_are():
    """Byte for byte: a release that writes otherwise would change every file."""
    for path in tracked("cost_tables/*.json"):
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        del document["sha256"]
        assert as_text(document) == text


def test_what_a_file_cannot_hold_is_read_as_well_as_can_be(saved_table):
    """What looks like a list of numbers in a text stays as it was written. An older
    sweep may have stored that its union implies infinite bandwidth: that is null."""
    table = CostTable.load(saved_table)
    test = {**table.provenance.union_test, "implied_gbps": float("inf")}
    made = replace(table.provenance, union_test=test)
    table = replace(table, provenance=made)
    table.save(saved_table)
    again = CostTable.load(saved_table)
    assert again.provenance.union_test["implied_gbps"] is None
    assert again.sha256 == table.sha256


def test_names_become_folders():
    """One that is none would lie above the tree, or hold tables of several models."""
    assert slug("Intel(R) Xeon(R) CPU @ 2.50GHz") == "intel-xeon-cpu-2.50ghz"
    assert slug("NVIDIA H200") == "nvidia-h200"
    assert slug("模型_甲") == "模型-甲"
    for name in ("..", ".", "", "@ @"):
        with pytest.raises(DataError, match="one with a letter or a digit"):
            slug(name)
    assert version_of("1.0.10") > version_of("1.0.9")

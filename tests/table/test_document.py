"""The table's file: signed, versioned, strict."""

import json
from pathlib import Path

import pytest

from evict_profile.errors import TableError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import Fitted
from evict_profile.records import digest, replace
from evict_profile.table import CostTable, files_of, slug, version_of


@pytest.fixture(scope="module")
def exported(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table on disk."""
    return export_table(fitted, tmp_path_factory.mktemp("tables"))[1]


def edited(exported: Path, folder: Path, sign: bool, **changes: object) -> Path:
    """A copy with fields changed, signed again or not."""
    document = {**json.loads(exported.read_text()), **changes}
    if sign:
        document.pop("sha256")
        document["sha256"] = digest(document)
    copy = folder / "1.0.0.json"
    copy.write_text(json.dumps(document))
    return copy


def test_the_hash_is_over_the_compact_document(exported: Path) -> None:
    """As design says: sorted keys, compact separators, UTF-8, without the field."""
    document = json.loads(exported.read_text(encoding="utf-8"))
    stated = document.pop("sha256")
    assert stated == digest(document)
    assert document["schema"] == "evict-cost-table/3"


def test_a_table_that_is_read_and_saved_is_the_same(
    exported: Path, tmp_path: Path
) -> None:
    """Byte for byte, so that its hash still names it."""
    again = tmp_path / "again.json"
    CostTable.load(exported).save(again)
    assert again.read_bytes() == exported.read_bytes()


def test_a_table_with_intervals_of_terms_is_read_as_it_is(
    exported: Path, tmp_path: Path
) -> None:
    """As they were written before costs of one more were told, hash and prices."""
    fit = json.loads(exported.read_text())["fit"]
    del fit["marginal"]
    for term in fit["layers"] + fit["non_moe"]:
        term["us_per_unit_interval"] = [0.0, 1e6]
    old = edited(exported, tmp_path, sign=True, fit=fit)
    table, present = CostTable.load(old), CostTable.load(exported)
    assert table.sha256 == json.loads(old.read_text())["sha256"]
    assert table.fit.marginal == ()
    assert table.price(1, 100).step_cost_us == pytest.approx(
        present.price(1, 100).step_cost_us, rel=1e-12
    )


def in_words_of_schema_2(document: dict) -> dict:
    """The same as readers of schema 2 wrote it."""
    text = json.dumps(document)
    for new, old in (
        ("activation", "activation"),
        ("per_rank", "continuation"),
        ("conditional", "links"),
        ("non_moe", "ends"),
        ("hinge", "ours"),
        ("message", "says"),
        ("expert_rows", "crowd"),
    ):
        text = text.replace(f'"{new}"', f'"{old}"')
    return json.loads(text)


@pytest.mark.parametrize("schema", ["evict-cost-table/1", "evict-cost-table/2"])
def test_a_table_of_a_schema_before_is_read(
    exported: Path, tmp_path: Path, schema: str
) -> None:
    """In this schema's words it says what it said, its 90 % intervals among it."""
    document = in_words_of_schema_2(json.loads(exported.read_text()))
    if schema.endswith("1"):
        del document["drafting"], document["activation"]["by_batch"]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(document))
    read = CostTable.load(edited(old, tmp_path, sign=True, schema=schema))
    present = CostTable.load(exported)
    assert read.document == {**present.document, "interval_percent": 90}
    read.save(old)
    assert CostTable.load(old).interval_percent == 90


def test_a_workload_of_the_schema_before_is_read(
    workload_table: Path, tmp_path: Path
) -> None:
    """With its conditional acceptance, and without."""
    document = in_words_of_schema_2(json.loads(workload_table.read_text()))
    old = tmp_path / "old.json"
    old.write_text(json.dumps(document))
    before = {"sign": True, "schema": "evict-cost-table/2"}
    table = CostTable.load(workload_table)
    read = CostTable.load(edited(old, tmp_path, **before))
    assert read.document == {**table.document, "interval_percent": 90}
    del document["acceptance"]["links"]
    old.write_text(json.dumps(document))
    read = CostTable.load(edited(old, tmp_path, **before))
    assert read.acceptance == replace(table.acceptance, conditional=None)


def test_a_workload_survives_the_file(workload_table: Path, tmp_path: Path) -> None:
    """Byte for byte, as all else does."""
    again = tmp_path / "again.json"
    CostTable.load(workload_table).save(again)
    assert again.read_bytes() == workload_table.read_bytes()


def test_one_changed_digit_is_found(exported: Path, tmp_path: Path) -> None:
    """A table that was edited by hand does not load."""
    with pytest.raises(TableError, match="does not match its sha256"):
        CostTable.load(edited(exported, tmp_path, sign=False, version="1.0.7"))


@pytest.mark.parametrize("sha256", [None, ""])
def test_a_text_that_has_no_digest_is_refused(
    exported: Path, tmp_path: Path, sha256: str | None
) -> None:
    """Half a surrogate pair cannot be hashed, and matches no hash."""
    document = json.loads(exported.read_text())
    path = tmp_path / "1.0.0.json"
    path.write_text(json.dumps({**document, "version": "\ud800", "sha256": sha256}))
    with pytest.raises(TableError, match="does not match its sha256"):
        CostTable.load(path)


def test_a_cut_file_is_found(exported: Path, tmp_path: Path) -> None:
    """Half a download is named as such."""
    half = tmp_path / "1.0.0.json"
    half.write_text(exported.read_text()[: exported.stat().st_size // 2])
    with pytest.raises(TableError, match="not a whole JSON document"):
        CostTable.load(half)


def test_a_document_too_deep_to_read_is_refused(tmp_path: Path) -> None:
    """No parser goes down without end."""
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(TableError, match="not a whole JSON document"):
        CostTable.load(path)


def test_a_newer_schema_is_refused(exported: Path, tmp_path: Path) -> None:
    """With the fix: upgrade."""
    newer = edited(exported, tmp_path, sign=True, schema="evict-cost-table/4")
    with pytest.raises(TableError, match="upgrade evict-profile"):
        CostTable.load(newer)


@pytest.mark.parametrize("schema", ["evict-replay/1", "evict-cost/2", 7])
def test_another_kind_of_document_is_no_table(tmp_path: Path, schema: object) -> None:
    """To upgrade would not help: what to give is said."""
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"schema": schema}))
    with pytest.raises(TableError, match=r"is no cost table; give a \.json that"):
        CostTable.load(path)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    """It may be a run, whose table is to be written first."""
    with pytest.raises(TableError, match=r"with 'evict-profile export .*' and give"):
        CostTable.load(tmp_path)


def test_a_table_is_its_file_and_its_samples() -> None:
    """What no command may write to while it reads the table."""
    assert files_of(Path("a/1.0.0.json")) == (
        Path("a/1.0.0.json"),
        Path("a/1.0.0.parquet"),
    )
    assert files_of(Path()) == ()


def test_an_unknown_field_is_refused(exported: Path, tmp_path: Path) -> None:
    """Even when it is signed."""
    with pytest.raises(TableError, match="unknown key 'colour'"):
        CostTable.load(edited(exported, tmp_path, sign=True, colour="red"))


def test_staircases_stand_on_one_line_each(exported: Path) -> None:
    """So that a diff of two tables shows which staircase moved."""
    lines = [
        line for line in exported.read_text().splitlines() if "step_cost_us" in line
    ]
    assert len(lines) == 4
    assert all(line.rstrip(",").endswith("]") for line in lines)


def test_names_become_folders() -> None:
    """Marks and spaces do not reach the file system."""
    assert slug("Intel(R) Xeon(R) CPU @ 2.50GHz") == "intel-xeon-cpu-2.50ghz"
    assert slug("NVIDIA H200") == "nvidia-h200"


def test_versions_order_as_numbers() -> None:
    """1.0.10 is after 1.0.9."""
    assert version_of("1.0.10") > version_of("1.0.9")

"""A run folder's files are whole or absent, and never mixed with another run's."""

import errno

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evict_profile.errors import DataError
from evict_profile.run_folder import RunFolder

ROWS = pa.table({"round": [1, 2, 3]})


class Measurements(RunFolder):
    """Some parts."""

    header_name = "header.json"
    parts_name = "parts"
    noun = "numbers"


@pytest.fixture
def run(tmp_path):
    folder = Measurements(tmp_path / "run")
    folder.write_header({"device": "paper"})
    for name in ("a", "b"):
        folder.add_part(name, ROWS)
    return folder


def failing_write(code):

    def write(rows, path, **_):
        path.write_bytes(b"PAR1 and then")
        raise OSError(code, {errno.ENOSPC: "No space left on device"}.get(code, "no"))

    return write


def test_what_was_written_is_read_back(run):
    run.add_note("clock", {"us": 1.5})
    again = Measurements(run.folder)
    assert again.exists()
    assert again.read_header() == {"device": "paper"}
    assert again.read_parts() == [ROWS, ROWS]
    assert again.note("clock") == {"us": 1.5}
    assert again.note("other") is None


def test_what_is_no_number_is_written_as_null(run):
    """JSON has neither NaN nor infinities, and other readers refuse them."""
    run.add_note("test", {"gbps": float("inf"), "us": [float("nan"), 1.0]})
    assert run.note("test") == {"gbps": None, "us": [None, 1.0]}


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_damaged_part_is_named_with_its_mend(run, kept):
    part = run.part("b")
    part.write_bytes(part.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"b\.parquet: is damaged .*; delete this"):
        run.read_parts()
    part.unlink()
    assert run.read_parts() == [ROWS]


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_damaged_note_or_header_is_named(run, text):
    run.add_note("clock", {})
    for path in (run.header_path, run.folder / "clock.json"):
        path.write_text(text)
    with pytest.raises(DataError, match=r"header\.json: cannot be read .* copy back"):
        run.read_header()
    with pytest.raises(DataError, match=r"clock\.json: cannot be read .* delete it"):
        run.note("clock")


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, r"No space left.*; free some space"),
        (errno.EACCES, "make the folder writable"),
    ],
)
def test_a_failed_write_is_one_sentence_and_keeps_all_parts(
    run, monkeypatch, code, fix
):
    """What was stored stays, and what was not leaves no trace."""
    before = {path: path.read_bytes() for path in run.parts.iterdir()}
    with monkeypatch.context() as failing:
        failing.setattr(pq, "write_table", failing_write(code))
        with pytest.raises(DataError, match=fix):
            run.add_part("c", ROWS)
    assert {path: path.read_bytes() for path in run.parts.iterdir()} == before
    run.add_part("c", ROWS)
    assert len(run.read_parts()) == 3


def test_a_file_cut_short_by_a_kill_is_no_part(run):
    """A temporary file is not read, and each process writes one of its own."""
    killed = run.parts / ".c.parquet.1.tmp"
    killed.write_bytes(b"PAR1")
    assert len(run.read_parts()) == 2
    run.add_part("c", ROWS)
    assert len(run.read_parts()) == 3
    assert list(run.folder.rglob("*.tmp")) == [killed]


def test_parts_that_no_header_accounts_for_are_refused(run):
    run.check_no_orphans()
    run.header_path.unlink()
    with pytest.raises(DataError, match=r"numbers but no header\.json, so what they"):
        run.check_no_orphans()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be created: .*; choose another"):
        Measurements(tmp_path / "file" / "run").write_header({})

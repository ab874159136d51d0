"""Parts on disk are whole or absent, and never mixed with another recording's."""

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evict_profile.errors import StoreError, TraceError
from evict_profile.records import Facts, to_mapping
from evict_profile.traces import load_traces
from evict_profile.traces.record import TracePlan, TraceRecording, trace_rows
from evict_profile.traces.recording import RecordingFolder
from evict_profile.traces.schema import TRACE, FileFormat
from tests.traces import synthetic
from tests.traces.synthetic import ABOUT

PLAN = TracePlan(prompts=2, tokens=4, workloads=("code", "prose"), batches=(1, 4))
PARTS = [
    trace_rows(key, synthetic.reply_steps(synthetic.Plan(tokens=4), key))
    for key in PLAN.replies()
]


def folder_of(file: Path, form: FileFormat = TRACE) -> RecordingFolder:
    """The folder of a recording that goes into this file."""
    return RecordingFolder(file, form)


def name(index: int) -> str:
    """Of the part that holds a reply."""
    return f"{index:05d}"


def keep_clock(store: RecordingFolder, batch: int) -> None:
    """As a recording keeps it."""
    clock = synthetic.make_clock(ABOUT, batch)
    store.add_note(f"clock-{batch}", to_mapping(clock))


def finish(store: RecordingFolder, learnt: object = None) -> str:
    """Put the parts into the file."""

    class Learnt(TraceRecording):
        form = store.form

        def metadata(self) -> Facts:
            return {"learnt": learnt}

    return Learnt(None, PLAN, ABOUT, store).finish()  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> RecordingFolder:
    """A recording that has begun."""
    begun = folder_of(tmp_path / "trace.parquet")
    assert begun.begin(PLAN.facts(ABOUT))
    return begun


def fill(store: RecordingFolder) -> None:
    """Record all of the plan."""
    for index, rows in enumerate(PARTS):
        store.add_part(name(index), rows)
    for batch in PLAN.batches:
        keep_clock(store, batch)


def test_finished_parts_are_one_file(store: RecordingFolder) -> None:
    """With every reply, the clocks and the facts; nothing is left beside it."""
    with store.alone():
        fill(store)
        assert finish(store) == "4 replies, 16 steps"
    trace = load_traces(store.file)
    assert trace.about == ABOUT
    assert [clock.batch for clock in trace.clocks] == [1, 4]
    assert len(trace.replies) == 4
    assert [path.name for path in store.file.parent.iterdir()] == ["trace.parquet"]


def test_what_is_recorded_is_known(store: RecordingFolder) -> None:
    """So that it is not recorded twice."""
    keep_clock(store, 4)
    assert not store.continues()
    store.add_part(name(1), PARTS[1])
    assert store.continues()
    assert [store.part(name(index)).exists() for index in range(3)] == [
        False,
        True,
        False,
    ]
    assert [store.note(f"clock-{batch}") is not None for batch in (1, 4)] == [
        False,
        True,
    ]


def test_a_recording_is_marked_as_its_form(tmp_path: Path) -> None:
    """By schema and key, with what else is to be told; it is then no trace."""
    form = FileFormat(
        "evict-else/3", b"evict-else", "else", "docs/else.md", "elsewhere"
    )
    store = folder_of(tmp_path / "else.parquet", form)
    store.begin(PLAN.facts(ABOUT))
    fill(store)
    finish(store, learnt=[1, 2])
    (told,) = pq.read_schema(store.file).metadata.values()
    assert json.loads(told)["schema"] == "evict-else/3"
    assert json.loads(told)["learnt"] == [1, 2]
    assert not store.begin(PLAN.facts(ABOUT))
    with pytest.raises(
        TraceError, match="no trace that 'evict-profile trace' recorded"
    ):
        folder_of(store.file).begin(PLAN.facts(ABOUT))


def test_a_recording_that_says_fan_goes_on(store: RecordingFolder) -> None:
    """The draft's topk was written so at first."""
    header = store.read_header()
    store.write_header({**header, "fan": header.pop("topk")})
    store.add_part(name(0), PARTS[0])
    assert folder_of(store.file).begin(PLAN.facts(ABOUT))


def test_the_same_recording_goes_on(store: RecordingFolder) -> None:
    """Before it is finished, and not after."""
    assert folder_of(store.file).begin(PLAN.facts(ABOUT))
    fill(store)
    finish(store)
    assert not folder_of(store.file).begin(PLAN.facts(ABOUT))


@pytest.mark.parametrize("finished", [False, True])
def test_another_recording_is_refused_by_name(
    store: RecordingFolder, finished: bool
) -> None:
    """Each fact that differs is in the message, with both values."""
    fill(store)
    if finished:
        finish(store)
    with pytest.raises(StoreError, match=r"tokens: 9 here, 4 there\); choose another"):
        folder_of(store.file).begin(replace(PLAN, tokens=9).facts(ABOUT))
    with pytest.raises(StoreError, match=r"\(device: stone here, paper there\)"):
        folder_of(store.file).begin(PLAN.facts(replace(ABOUT, device="stone")))


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, tokens=9)])
def test_clocks_alone_stand_in_no_plans_way(
    store: RecordingFolder, plan: TracePlan
) -> None:
    """They take seconds; a reply after them is kept with the new plan."""
    keep_clock(store, 4)
    later = folder_of(store.file)
    assert later.exists() and not later.continues() and later.stored() is None
    later.begin(plan.facts(ABOUT))
    assert later.note("clock-4") is None
    later.add_part(name(0), PARTS[0])
    assert folder_of(store.file).continues()
    with pytest.raises(StoreError, match="prompts: 3 here, 2 there"):
        folder_of(store.file).begin(replace(plan, prompts=3).facts(ABOUT))


def test_a_damaged_plan_of_nothing_is_begun_anew(store: RecordingFolder) -> None:
    """As a plan that was written well."""
    (store.folder / "plan.json").write_text("{")
    assert folder_of(store.file).begin(PLAN.facts(ABOUT))


def test_what_holds_clocks_alone_is_not_left_about(store: RecordingFolder) -> None:
    """What took longer is."""
    with store.alone():
        store.begin(PLAN.facts(ABOUT))
        keep_clock(store, 4)
    assert not list(store.file.parent.iterdir())
    with store.alone():
        store.begin(PLAN.facts(ABOUT))
        store.add_part(name(0), PARTS[0])
    assert store.continues()


def test_replies_beside_a_foreign_file_are_kept(store: RecordingFolder) -> None:
    """The file is refused, and nothing is lost with it."""
    store.add_part(name(0), PARTS[0])
    store.file.write_text("in the way")
    with pytest.raises(TraceError, match="is there already"), store.alone():
        store.begin(PLAN.facts(ABOUT))
    assert store.part(name(0)).exists()


def test_a_trace_of_another_recorder_is_not_overwritten(tmp_path: Path) -> None:
    """A server's trace says nothing of a plan."""
    path = synthetic.write_trace(tmp_path / "trace.parquet")
    before = path.read_bytes()
    with pytest.raises(TraceError, match="is there already, and no trace"):
        folder_of(path).begin(PLAN.facts(ABOUT))
    assert path.read_bytes() == before


def test_a_file_that_is_no_trace_is_not_overwritten(tmp_path: Path) -> None:
    """Whatever it is."""
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(TraceError, match="is there already, and no trace"):
        folder_of(path).begin(PLAN.facts(ABOUT))
    assert path.read_text() == "keep me"


def test_replies_that_no_plan_accounts_for_are_refused(store: RecordingFolder) -> None:
    """Else they would be taken for this plan's."""
    store.add_part(name(0), PARTS[0])
    (store.folder / "plan.json").unlink()
    with pytest.raises(
        StoreError, match=r"replies but no plan\.json, so what they are"
    ):
        store.begin(PLAN.facts(ABOUT))


def test_a_kill_after_the_file_leaves_a_finished_recording(
    store: RecordingFolder,
) -> None:
    """Parts that a kill left beside the file go with the next command."""
    fill(store)
    finish(store)
    assert store.folder.exists()
    later = folder_of(store.file)
    with later.alone():
        assert not later.begin(PLAN.facts(ABOUT))
    assert not store.folder.exists()


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_damaged_part_is_named_with_its_mend(
    store: RecordingFolder, kept: int
) -> None:
    """The one file to delete is in the message, and nothing else is lost."""
    fill(store)
    part = store.folder / "00002.parquet"
    part.write_bytes(part.read_bytes()[:kept])
    with pytest.raises(StoreError, match=r"00002\.parquet: is damaged .* delete"):
        finish(store)
    assert not store.file.exists()
    part.unlink()
    store.add_part(name(2), PARTS[2])
    assert finish(store) == "4 replies, 16 steps"


def refuse(code: int) -> Callable[..., None]:
    """A writer that leaves half a file and fails."""

    def write(rows: pa.Table, path: Path, **_: object) -> None:
        path.write_bytes(b"PAR1 and then")
        raise OSError(code, "No space left on device")

    return write


def test_full_disk_is_one_sentence_and_keeps_all_replies(
    store: RecordingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored stays, also when the last write of all fails."""
    fill(store)
    with monkeypatch.context() as full:
        full.setattr(pq, "write_table", refuse(errno.ENOSPC))
        with pytest.raises(StoreError, match=r"No space left.*; free some space"):
            finish(store)
    assert not store.file.exists()
    assert not list(store.file.parent.rglob("*.tmp"))
    assert finish(store) == "4 replies, 16 steps"


def test_an_unwritable_place_is_known_at_once(tmp_path: Path) -> None:
    """Before an hour of recording."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="choose another place"):
        folder_of(tmp_path / "file" / "trace.parquet")


def test_two_at_once_are_kept_apart(store: RecordingFolder) -> None:
    """The second one is told; when the first has ended, it may go on."""
    other = folder_of(store.file)
    with (
        store.alone(),
        pytest.raises(StoreError, match="another process is writing into it"),
        other.alone(),
    ):
        pass
    with other.alone():
        assert other.begin(PLAN.facts(ABOUT))

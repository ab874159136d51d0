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
from evict_profile.traces import load_traces
from evict_profile.traces.plan import Plan
from evict_profile.traces.rows import rows_of
from evict_profile.traces.schema import Form
from evict_profile.traces.store import TraceStore
from tests.traces import synthetic
from tests.traces.synthetic import ABOUT

PLAN = Plan(prompts=2, tokens=4, workloads=("code", "prose"), batches=(1, 4))
PARTS = [
    rows_of(key, synthetic.reply_steps(synthetic.Plan(tokens=4), key))
    for key in PLAN.replies()
]


@pytest.fixture
def store(tmp_path: Path) -> TraceStore:
    """A recording that has begun."""
    begun = TraceStore(tmp_path / "trace.parquet")
    assert begun.begin(PLAN, ABOUT)
    return begun


def fill(store: TraceStore) -> None:
    """Record all of the plan."""
    for index, rows in enumerate(PARTS):
        store.keep_reply(index, rows)
    for batch in PLAN.batches:
        store.keep_clock(synthetic.make_clock(ABOUT, batch))


def test_finished_parts_are_one_file(store: TraceStore) -> None:
    """With every reply, the clocks and the facts; nothing is left beside it."""
    with store.alone():
        fill(store)
        assert store.finish(PLAN, ABOUT) == 16
    trace = load_traces(store.file)
    assert trace.about == ABOUT
    assert [clock.batch for clock in trace.clocks] == [1, 4]
    assert len(trace.replies) == 4
    assert [path.name for path in store.file.parent.iterdir()] == ["trace.parquet"]


def test_what_is_recorded_is_known(store: TraceStore) -> None:
    """So that it is not recorded twice."""
    store.keep_clock(synthetic.make_clock(ABOUT, 4))
    assert not store.continues()
    store.keep_reply(1, PARTS[1])
    assert store.continues()
    assert [store.has_reply(index) for index in range(3)] == [False, True, False]
    assert [store.has_clock(batch) for batch in (1, 4)] == [False, True]


def test_notes_are_kept_beside_replies(store: TraceStore) -> None:
    """By name, until the recording is finished."""
    assert store.note("learnt") is None
    store.keep_note("learnt", {"mass": [0.5]})
    assert TraceStore(store.file).note("learnt") == {"mass": [0.5]}
    assert store.continues()


def test_a_recording_is_marked_as_its_form(tmp_path: Path) -> None:
    """By schema and key, with what else is to be told; it is then no trace."""
    form = Form("evict-else/3", b"evict-else", "else", "docs/else.md", "elsewhere")
    store = TraceStore(tmp_path / "else.parquet", form)
    store.begin(PLAN, ABOUT)
    fill(store)
    store.finish(PLAN, ABOUT, learnt=[1, 2])
    (told,) = pq.read_schema(store.file).metadata.values()
    assert json.loads(told)["schema"] == "evict-else/3"
    assert json.loads(told)["learnt"] == [1, 2]
    assert not store.begin(PLAN, ABOUT)
    with pytest.raises(
        TraceError, match="no trace that 'evict-profile trace' recorded"
    ):
        TraceStore(store.file).begin(PLAN, ABOUT)


def test_the_same_recording_goes_on(store: TraceStore) -> None:
    """Before it is finished, and not after."""
    assert TraceStore(store.file).begin(PLAN, ABOUT)
    fill(store)
    store.finish(PLAN, ABOUT)
    assert not TraceStore(store.file).begin(PLAN, ABOUT)


@pytest.mark.parametrize("finished", [False, True])
def test_another_recording_is_refused_by_name(
    store: TraceStore, finished: bool
) -> None:
    """Each fact that differs is in the message, with both values."""
    fill(store)
    if finished:
        store.finish(PLAN, ABOUT)
    with pytest.raises(StoreError, match=r"tokens: 9 here, 4 there\); choose another"):
        TraceStore(store.file).begin(replace(PLAN, tokens=9), ABOUT)
    with pytest.raises(StoreError, match=r"\(device: stone here, paper there\)"):
        TraceStore(store.file).begin(PLAN, replace(ABOUT, device="stone"))


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, tokens=9)])
def test_clocks_alone_stand_in_no_plans_way(store: TraceStore, plan: Plan) -> None:
    """They take seconds; a reply after them is kept with the new plan."""
    store.keep_clock(synthetic.make_clock(ABOUT, 4))
    later = TraceStore(store.file)
    assert later.left_over() and later.reference_us() == 0.0
    later.begin(plan, ABOUT)
    assert not later.has_clock(4)
    later.keep_reply(0, PARTS[0])
    assert not TraceStore(store.file).left_over()
    with pytest.raises(StoreError, match="prompts: 3 here, 2 there"):
        TraceStore(store.file).begin(replace(plan, prompts=3), ABOUT)


def test_a_damaged_plan_of_nothing_is_begun_anew(store: TraceStore) -> None:
    """As a plan that was written well."""
    (store.folder / "plan.json").write_text("{")
    assert TraceStore(store.file).begin(PLAN, ABOUT)


def test_what_holds_clocks_alone_is_not_left_about(store: TraceStore) -> None:
    """What took longer is."""
    with store.alone():
        store.begin(PLAN, ABOUT)
        store.keep_clock(synthetic.make_clock(ABOUT, 4))
    assert not list(store.file.parent.iterdir())
    with store.alone():
        store.begin(PLAN, ABOUT)
        store.keep_reply(0, PARTS[0])
    assert store.continues()


def test_replies_beside_a_foreign_file_are_kept(store: TraceStore) -> None:
    """The file is refused, and nothing is lost with it."""
    store.keep_reply(0, PARTS[0])
    store.file.write_text("in the way")
    with pytest.raises(TraceError, match="is there already"), store.alone():
        store.begin(PLAN, ABOUT)
    assert store.has_reply(0)


def test_a_trace_of_another_recorder_is_not_overwritten(tmp_path: Path) -> None:
    """A server's trace says nothing of a plan."""
    path = synthetic.write_trace(tmp_path / "trace.parquet")
    before = path.read_bytes()
    with pytest.raises(TraceError, match="is there already, and no trace"):
        TraceStore(path).begin(PLAN, ABOUT)
    assert path.read_bytes() == before


def test_a_file_that_is_no_trace_is_not_overwritten(tmp_path: Path) -> None:
    """Whatever it is."""
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(TraceError, match="is there already, and no trace"):
        TraceStore(path).begin(PLAN, ABOUT)
    assert path.read_text() == "keep me"


def test_replies_that_no_plan_accounts_for_are_refused(store: TraceStore) -> None:
    """Else they would be taken for this plan's."""
    store.keep_reply(0, PARTS[0])
    (store.folder / "plan.json").unlink()
    with pytest.raises(
        StoreError, match=r"replies but no plan\.json, so what they are"
    ):
        store.begin(PLAN, ABOUT)


def test_a_kill_after_the_file_leaves_a_finished_recording(store: TraceStore) -> None:
    """Parts that a kill left beside the file go with the next command."""
    fill(store)
    store.finish(PLAN, ABOUT)
    assert store.folder.exists()
    later = TraceStore(store.file)
    with later.alone():
        assert not later.begin(PLAN, ABOUT)
    assert not store.folder.exists()


def test_a_file_cut_short_by_a_kill_is_no_part(store: TraceStore) -> None:
    """A temporary file is not read, and the next write replaces it."""
    (store.folder / ".00001.parquet.tmp").write_bytes(b"PAR1")
    assert not store.has_reply(1)
    fill(store)
    assert store.finish(PLAN, ABOUT) == 16


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_damaged_part_is_named_with_its_mend(store: TraceStore, kept: int) -> None:
    """The one file to delete is in the message, and nothing else is lost."""
    fill(store)
    part = store.folder / "00002.parquet"
    part.write_bytes(part.read_bytes()[:kept])
    with pytest.raises(StoreError, match=r"00002\.parquet: is damaged .* delete"):
        store.finish(PLAN, ABOUT)
    assert not store.file.exists()
    part.unlink()
    store.keep_reply(2, PARTS[2])
    assert store.finish(PLAN, ABOUT) == 16


def refuse(code: int) -> Callable[..., None]:
    """A writer that leaves half a file and fails."""

    def write(rows: pa.Table, path: Path, **_: object) -> None:
        path.write_bytes(b"PAR1 and then")
        raise OSError(code, "No space left on device")

    return write


def test_full_disk_is_one_sentence_and_keeps_all_replies(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored stays, also when the last write of all fails."""
    fill(store)
    with monkeypatch.context() as full:
        full.setattr(pq, "write_table", refuse(errno.ENOSPC))
        with pytest.raises(StoreError, match=r"No space left.*; free some space"):
            store.finish(PLAN, ABOUT)
    assert not store.file.exists()
    assert not list(store.file.parent.rglob("*.tmp"))
    assert store.finish(PLAN, ABOUT) == 16


def test_an_unwritable_place_is_known_at_once(tmp_path: Path) -> None:
    """Before an hour of recording."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="choose another place"):
        TraceStore(tmp_path / "file" / "trace.parquet")


def test_two_at_once_are_kept_apart(store: TraceStore) -> None:
    """The second one is told; when the first has ended, it may go on."""
    other = TraceStore(store.file)
    with (
        store.alone(),
        pytest.raises(StoreError, match="another process is writing into it"),
        other.alone(),
    ):
        pass
    with other.alone():
        assert other.begin(PLAN, ABOUT)

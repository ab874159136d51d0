"""Parts on disk are whole or absent, and never mixed with another recording's."""

import pytest

from evict_profile.errors import StoreError, TraceError
from evict_profile.records import replace, to_mapping
from evict_profile.traces import load_traces
from evict_profile.traces.record import TracePlan, TraceRecording, trace_rows
from evict_profile.traces.recording import RecordingFolder
from evict_profile.traces.schema import TRACE
from tests.traces import synthetic
from tests.traces.synthetic import ABOUT

PLAN = TracePlan(prompts=2, tokens=4, workloads=("code", "prose"), batches=(1, 4))
PARTS = [
    trace_rows(key, synthetic.reply_steps(synthetic.Plan(tokens=4), key))
    for key in PLAN.replies()
]
FACTS = PLAN.facts(ABOUT)


def again(store):
    """The same folder, as the next command sees it."""
    return RecordingFolder(store.file, TRACE)


def keep_clock(store, batch):
    clock = synthetic.make_clock(ABOUT, batch)
    store.add_note(f"clock-{batch}", to_mapping(clock))


def finish(store):
    return TraceRecording(None, PLAN, ABOUT, store).finish()  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path):
    begun = RecordingFolder(tmp_path / "trace.parquet", TRACE)
    assert begun.begin(FACTS)
    return begun


def fill(store):
    for index, rows in enumerate(PARTS):
        store.add_part(f"{index:05d}", rows)
    for batch in PLAN.batches:
        keep_clock(store, batch)


def test_finished_parts_are_one_file(store):
    with store.alone():
        fill(store)
        assert finish(store) == "4 replies, 16 steps"
    trace = load_traces(store.file)
    assert trace.about == ABOUT
    assert [clock.batch for clock in trace.clocks] == [1, 4]
    assert len(trace.replies) == 4
    assert [path.name for path in store.file.parent.iterdir()] == ["trace.parquet"]


def test_the_same_recording_goes_on_until_it_is_finished(store):
    store.add_part("00001", PARTS[1])
    assert again(store).begin(FACTS)
    fill(store)
    finish(store)
    assert not again(store).begin(FACTS)


def test_a_recording_that_says_fan_goes_on(store):
    """The draft's topk was written so at first."""
    header = store.read_header()
    store.write_header({**header, "fan": header.pop("topk")})
    store.add_part("00000", PARTS[0])
    assert again(store).begin(FACTS)


@pytest.mark.parametrize("finished", [False, True])
def test_another_recording_is_refused_by_name(store, finished):
    fill(store)
    if finished:
        finish(store)
    with pytest.raises(StoreError, match=r"tokens: 9 here, 4 there\); choose another"):
        again(store).begin(replace(PLAN, tokens=9).facts(ABOUT))
    with pytest.raises(StoreError, match=r"\(device: stone here, paper there\)"):
        again(store).begin(PLAN.facts(replace(ABOUT, device="stone")))


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, tokens=9)])
def test_clocks_alone_stand_in_no_plans_way(store, plan):
    """They take seconds; a reply after them is kept with the new plan."""
    keep_clock(store, 4)
    later = again(store)
    assert later.exists() and not later.continues() and later.stored() is None
    later.begin(plan.facts(ABOUT))
    assert later.note("clock-4") is None
    later.add_part("00000", PARTS[0])
    assert again(store).continues()
    with pytest.raises(StoreError, match="prompts: 3 here, 2 there"):
        again(store).begin(replace(plan, prompts=3).facts(ABOUT))


def test_a_damaged_plan_of_nothing_is_begun_anew(store):
    (store.folder / "plan.json").write_text("{")
    assert again(store).begin(FACTS)


@pytest.mark.parametrize("content", ["a server's trace", "notes"])
def test_a_file_of_another_recorder_is_kept_and_so_are_replies_beside_it(
    store, content
):
    store.add_part("00000", PARTS[0])
    if content == "notes":
        store.file.write_text("keep me")
    else:
        synthetic.write_trace(store.file)
    before = store.file.read_bytes()
    with pytest.raises(TraceError, match="is there already, and no"), store.alone():
        store.begin(FACTS)
    assert store.file.read_bytes() == before
    assert store.part("00000").exists()


def test_replies_that_no_plan_accounts_for_are_refused(store):
    store.add_part("00000", PARTS[0])
    (store.folder / "plan.json").unlink()
    with pytest.raises(StoreError, match=r"replies but no plan\.json, so what they"):
        store.begin(FACTS)


def test_a_kill_after_the_file_leaves_a_finished_recording(store):
    """Parts that a kill left beside the file go with the next command."""
    fill(store)
    finish(store)
    assert store.folder.exists()
    later = again(store)
    with later.alone():
        assert not later.begin(FACTS)
    assert not store.folder.exists()


def test_a_damaged_part_is_recorded_again(store):
    """The one file to delete is in the message, and nothing else is lost."""
    fill(store)
    part = store.part("00002")
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(StoreError, match=r"00002\.parquet: is damaged .* delete"):
        finish(store)
    assert not store.file.exists()
    part.unlink()
    store.add_part("00002", PARTS[2])
    assert finish(store) == "4 replies, 16 steps"


def test_an_unwritable_place_is_known_at_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="choose another place"):
        RecordingFolder(tmp_path / "file" / "trace.parquet", TRACE)

"""A folder of parts, as a server writes them, is read as one trace."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evict_profile.drafting import DraftClock
from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.traces import load_traces
from evict_profile.traces.schema import Metadata, mark
from tests.command import evict
from tests.traces.synthetic import ABOUT, TINY, Plan, make_table, write_trace
from tests.traces.test_load import same_trace

PLAN = Plan(prompts=3, tokens=7, workloads=("served",))


def write_parts(folder, table, server="71", rows=5):
    """A trace in parts of so many rows, in the order of its rows."""
    folder.mkdir(exist_ok=True)
    paths = []
    for part, first in enumerate(range(0, len(table), rows)):
        paths.append(folder / f"{server}-{part:06}.parquet")
        pq.write_table(table.slice(first, rows), paths[-1])
    return paths


def write_part(path, about=ABOUT, clocks=(), positions=slice(None), drop=()):
    path.parent.mkdir(exist_ok=True)
    table = make_table(replace(PLAN, prompts=1)).drop_columns(list(drop))
    first, end, _ = positions.indices(len(table))
    pq.write_table(mark(table.slice(first, end - first), Metadata(about, clocks)), path)
    return path


def test_parts_are_one_trace_whatever_their_order(tmp_path):
    """Steps of several replies are interleaved as a batch decodes them."""
    table = make_table(PLAN)
    shuffled = table.sort_by([("position", "descending"), ("prompt", "ascending")])
    shuffled = shuffled.replace_schema_metadata(table.schema.metadata)
    assert len(write_parts(tmp_path / "parts", shuffled, rows=4)) == 6
    whole = write_trace(tmp_path / "whole.parquet", PLAN)
    assert same_trace(load_traces(tmp_path / "parts"), load_traces(whole))


@pytest.mark.parametrize("servers", [("9", "71", "710"), ("a", "a-000000x")])
def test_replies_of_several_servers_stay_apart(servers, tmp_path):
    """Each numbers its prompts from 0; a part's number is behind the last dash."""
    for server in servers:
        write_parts(tmp_path / "parts", make_table(PLAN), server)
    trace = load_traces(tmp_path / "parts")
    assert [reply.prompt for reply in trace.replies] == list(range(3 * len(servers)))
    assert set(np.bincount(trace.reply)) == {PLAN.tokens}


def test_the_same_step_twice_is_refused(tmp_path):
    """Files that are not told apart by server are of one."""
    for name in ("a", "b"):
        write_part(tmp_path / "parts" / f"{name}.parquet")
    with pytest.raises(DataError, match=r"parts: row .* is there twice"):
        load_traces(tmp_path / "parts")


def test_clocks_are_the_last_parts_of_each_batch(tmp_path):
    """A batch size that ran at first alone keeps its clock."""
    for part, batches in enumerate([(4, 1, 2), (2, 8)]):
        clocks = tuple(DraftClock(batch, (0.0, 1.0), part, part) for batch in batches)
        path = tmp_path / "parts" / f"9-00000{part}.parquet"
        write_part(path, clocks=clocks, positions=slice(part, part + 1))
    clocks = load_traces(tmp_path / "parts").clocks
    assert [(c.batch, c.fixed_us) for c in clocks] == [(1, 0), (2, 1), (4, 0), (8, 1)]


def test_parts_of_another_plan_are_refused(tmp_path):
    """Of the same model and engine, recorded with other options."""
    for part, tokens in enumerate((64, 32)):
        path = write_part(tmp_path / "parts" / f"0000{part}.parquet")
        metadata = Metadata(ABOUT, (), {"tokens": tokens})
        pq.write_table(mark(pq.read_table(path), metadata), path)
    with pytest.raises(DataError, match="tokens: 32 here, 64 there"):
        load_traces(tmp_path / "parts")


def test_parts_of_another_recording_are_refused(tmp_path):
    write_part(tmp_path / "parts" / "9-000000.parquet")
    other = replace(ABOUT, model="other")
    write_part(tmp_path / "parts" / "9-000001.parquet", about=other, drop=("routes",))
    apart = r"9-000001.*9-000000.*\(model: other here, synthetic there; other columns"
    with pytest.raises(DataError, match=apart):
        load_traces(tmp_path / "parts")


def nothing(folder):
    (folder / "9-000000.unfinished").write_bytes(b"PAR1")


def unfinished(folder):
    rows = mark(make_table(PLAN), Metadata(ABOUT, replies=2))
    pq.write_table(rows, folder / "00000.parquet")


def broken(folder):
    path = write_part(folder / "9-000000.parquet")
    path.write_bytes(path.read_bytes()[:-9])


def unmarked(folder):
    write_part(folder / "9-000000.parquet")
    pq.write_table(pa.table({"prompt": [1]}), folder / "9-000001.parquet")


def without_prompts(folder):
    write_part(folder / "9-000000.parquet", drop=("prompt",))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (nothing, r"parts: holds no \*\.parquet; .*EVICT_PROFILE_MODE=observe"),
        (unfinished, "parts: holds 1 of 2 replies; run the command that"),
        (broken, r"9-000000\.parquet: is no trace, or is no whole Parquet file"),
        (unmarked, r"9-000001\.parquet: does not say that it is of"),
        (without_prompts, "parts: has no column prompt"),
    ],
)
def test_no_folder_of_parts_is_refused(make, sentence, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    make(folder)
    with pytest.raises(DataError, match=sentence):
        load_traces(folder)


@pytest.mark.parametrize(
    ("command", "options"),
    [("calibrate", ()), ("replay", ("--seeds", 1, "--out", "page.html"))],
)
def test_commands_take_the_folder(command, options, saved_table, tmp_path):
    plan = Plan(prompts=5, tokens=3, workloads=("served",), about=TINY)
    write_parts(tmp_path / "parts", make_table(plan), rows=8)
    words = (command, saved_table, "parts", *options)
    done = evict(*words, folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert ("table: " if command == "calibrate" else "report: ") in done.stdout

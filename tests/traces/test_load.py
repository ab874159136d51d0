"""A trace file is read back as recorded, or refused in one sentence."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.drafting import DraftClock
from evict_profile.errors import ConfigError, DataError
from evict_profile.records import replace
from evict_profile.traces import Reply, load_traces
from evict_profile.traces.load import trace_of
from evict_profile.traces.schema import NEEDED, TIMES, Metadata, mark
from tests.traces.steps import make_steps, steps_of
from tests.traces.synthetic import ABOUT, Plan, make_table, trace_rows, write_trace

KEYS = [Reply("code", 0, 0, 0.0), Reply("prose", 7, 1, 0.7)]
FIELDS = ("parent", "path_prob", "depth", "rank", "accepted", "routes")


def same_step(one, other):
    plain = [(s.position, s.context) for s in (one, other)]
    arrays = [(getattr(one, name), getattr(other, name)) for name in FIELDS]
    return plain[0] == plain[1] and all(np.array_equal(a, b) for a, b in arrays)


def same_trace(one, other):
    about = [(t.replies, t.reply.tolist(), t.about, t.clocks) for t in (one, other)]
    steps = zip(steps_of(one), steps_of(other), strict=True)
    same_times = np.array_equal(one.verify_us, other.verify_us)
    return about[0] == about[1] and same_times and all(same_step(*s) for s in steps)


@st.composite
def messages(draw, about, position):
    size = draw(st.integers(0, 8))
    parent = [draw(st.integers(-1, i - 1)) for i in range(size)]
    path_prob: list[float] = []
    accepted: list[bool] = []
    for node, above in enumerate(parent):
        most = path_prob[above] if above >= 0 else 1.0
        path_prob.append(draw(st.floats(0.0, most, width=32)))
        siblings = [accepted[i] for i in range(node) if parent[i] == above]
        may = (above < 0 or accepted[above]) and not any(siblings)
        accepted.append(may and draw(st.booleans()))
    shape = (size + 1, about.layers, about.top_k)
    seed = draw(st.integers(0, 99))
    routes = np.random.default_rng(seed).integers(about.experts, size=shape)
    kind = "<u1" if about.experts <= 256 else "<u2"
    times = st.floats(0.0, 1e6, width=32)
    return {
        "position": position,
        "context": draw(st.integers(0, 10**6)),
        "parent": parent,
        "token": [draw(st.integers(0, 2**31 - 1)) for _ in parent],
        "path_prob": path_prob,
        "accepted": accepted,
        "routes": routes.astype(kind).tobytes(),
        "draft_us": draw(st.lists(times, max_size=4)),
        "verify_us": draw(times),
        "fixed_us": draw(times),
    }


def step_of(message, about):
    tree = tuple(message[name] for name in ("parent", "path_prob", "accepted"))
    (step,) = steps_of(make_steps([KEYS[0]], [tree], [message["position"]]))
    kind = "<u1" if about.experts <= 256 else "<u2"
    flat = np.frombuffer(message["routes"], kind)
    step.routes = flat.reshape(-1, about.layers, about.top_k)
    step.context = message["context"]
    return step


@given(st.data(), st.sampled_from([16, 256, 257, 600]))
def test_what_was_recorded_is_read_back(data, experts):
    about = replace(ABOUT, experts=experts)
    positions = [
        (key, at) for key in KEYS for at in range(data.draw(st.integers(1, 3)))
    ]
    given_steps = [data.draw(messages(about, at)) for _, at in positions]
    parts = [
        trace_rows(key, [m]) for (key, _), m in zip(positions, given_steps, strict=True)
    ]
    clocks = (DraftClock(1, (0.0, 10.0), 3.0, 2.0),)
    shuffled = data.draw(st.permutations(parts))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        pq.write_table(mark(pa.concat_tables(shuffled), Metadata(about, clocks)), path)
        trace = load_traces(path)
    assert (trace.about, trace.clocks) == (about, clocks)
    assert [r.workload for r in trace.replies] == ["code", "prose"]
    assert trace.dense
    for step, message in zip(steps_of(trace), given_steps, strict=True):
        assert same_step(step, step_of(message, about))
    assert trace.verify_us.tolist() == [each["verify_us"] for each in given_steps]


def few(*names):
    return make_table(Plan(prompts=1, tokens=4, workloads=("code",))).select(names)


def test_needed_columns_are_enough():
    trace = trace_of(few(*NEEDED), "few")
    (reply,) = trace.replies
    assert (reply.workload, reply.seed, reply.temperature) == ("unnamed", 0, 0.0)
    assert (trace.routes, trace.verify_us) == (None, None)
    assert not trace.context.any()
    assert trace.dense


@pytest.mark.parametrize("name", NEEDED)
def test_a_needed_column_that_lacks_is_named(name):
    """Times come together."""
    with pytest.raises(DataError, match=f"has no column {name}; it needs prompt,"):
        trace_of(few(*(n for n in NEEDED if n != name)), "few")
    with pytest.raises(DataError, match="give all of draft_us, verify_us, fixed_us"):
        trace_of(few(*NEEDED, TIMES[0]), "few")


def test_wider_types_are_read():
    """pandas and lists of Python make int64 and float64."""
    table = few(*NEEDED)
    wide = {name: table.column(name).to_pylist() for name in NEEDED}
    plain = pa.table(wide).replace_schema_metadata(table.schema.metadata)
    assert plain.schema.field("path_prob").type == pa.list_(pa.float64())
    assert same_trace(trace_of(plain, "wide"), trace_of(table, "narrow"))


STEP = {"workload": "code", "prompt": 3, "seed": 0, "temperature": 0.0, "position": 1}
STEP |= {"context": 9, "parent": [-1, -1, 0], "token": [1, 2, 3]}
STEP |= {"path_prob": [0.5, 0.25, 0.5], "accepted": [True, False, True]}
STEP |= {"routes": bytes(4 * 3 * 2), "draft_us": [1.0]}
STEP |= {"verify_us": 1.0, "fixed_us": 1.0}


def table_with(**changes):
    good = [{**STEP, "position": at} for at in (0, 2)]
    rows = [good[0], {**STEP, **changes}, good[1]]
    columns = {name: [row[name] for row in rows] for name in STEP}
    return mark(pa.table(columns), Metadata(ABOUT))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"position": -1}, "position must be at least 0"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"temperature": float("nan")}, "temperature must be at least 0"),
        ({"position": 2}, "this position of this reply is there twice"),
        ({"parent": [-1, -1]}, "parent and path_prob must have one entry a node"),
        ({"accepted": [True]}, "accepted and path_prob must have one entry a node"),
        ({"parent": [-1, 2, 0]}, "parents must stand before their children"),
        ({"parent": [0, -1, 0]}, "parents must stand before their children"),
        ({"parent": [-1, -1, -2]}, "parents must stand before their children"),
        ({"path_prob": [0.5, 0.25, 0.51]}, "path_prob rises from parent to child"),
        ({"path_prob": [1.01, 0.25, 0.5]}, "path_prob must be within 0 and 1"),
        ({"path_prob": [0.5, -0.01, 0.5]}, "path_prob must be within 0 and 1"),
        ({"path_prob": [0.5, float("nan"), 0.5]}, "path_prob must be within 0 and 1"),
        ({"accepted": [False, False, True]}, "is accepted and its parent is not"),
        ({"accepted": [True, True, False]}, "two siblings are accepted"),
        ({"routes": bytes(3 * 3 * 2)}, "routes must hold 6 bytes for the root and for"),
        ({"prompt": None}, "^column prompt has nulls"),
        ({"parent": None}, "^column parent has nulls"),
        ({"path_prob": [0.5, None, 0.5]}, "^column path_prob has nulls within its li"),
        ({"parent": [-1, -1, 1 << 20]}, r"^column parent holds list.* where list<"),
        ({"routes": bytes([16]) * 24}, "^routes name expert 16 of 16"),
    ],
)
def test_what_no_step_can_be_is_refused(changes, sentence):
    """In a row; or in a column, where the sentence begins with it."""
    row = rf"row \d \(prompt 3, .*{sentence}"
    says = sentence[1:] if sentence[0] == "^" else row
    with pytest.raises(DataError, match=f"^bad: {says}"):
        trace_of(table_with(**changes), "bad")


def test_rounding_is_no_rise():
    """A child that rounding put above its parent is put level with it.

    The step that the refusals change is good.
    """
    assert len(trace_of(table_with(), "good")) == 3
    table = table_with(path_prob=[0.5, 0.25, 0.5001])
    step = list(steps_of(trace_of(table, "rounded")))[1]
    assert step.path_prob.tolist() == [0.5, 0.25, 0.5]


def test_routes_need_the_shape_of_the_model():
    """And a trace needs steps."""
    table = mark(table_with(), Metadata(replace(ABOUT, layers=0)))
    with pytest.raises(DataError, match="must say layers, experts and top_k"):
        trace_of(table, "bad")
    with pytest.raises(DataError, match="holds no steps"):
        trace_of(table_with().slice(0, 0), "empty")


UNMARKED = "does not say that it is of schema 'evict-trace/1'; give it"


@pytest.mark.parametrize(
    ("notes", "error", "sentence"),
    [
        (None, DataError, UNMARKED),
        (b"{", DataError, UNMARKED),
        (b"[]", DataError, UNMARKED),
        (b"{}", DataError, UNMARKED),
        (b'{"schema": "evict-trace/2"}', DataError, "2', and this .* evict-trace/1"),
        (
            b'{"schema": "evict-trace/1", "about": {"layers": "many"}}',
            ConfigError,
            r"about\.layers: ",
        ),
    ],
)
def test_metadata_of_another_kind_is_refused(notes, error, sentence):
    metadata = {b"evict-trace": notes} if notes else None
    table = table_with().replace_schema_metadata(metadata)
    with pytest.raises(error, match=f"^other: .*{sentence}"):
        trace_of(table, "other")


def test_no_parquet_is_refused(tmp_path):
    path = tmp_path / "trace.parquet"
    with pytest.raises(DataError, match=r"trace\.parquet: is not there; docs/referen"):
        load_traces(path)
    for content in (b"prompt,position", write_trace(path).read_bytes()[:-9]):
        path.write_bytes(content)
        says = r"trace\.parquet: is no trace, or is no whole Parquet file"
        with pytest.raises(DataError, match=says) as refusal:
            load_traces(path)
        assert "delete" not in str(refusal.value)

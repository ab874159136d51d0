"""What a server drafts and accepts is written down, and read back as it was."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.integrations.sglang import trace_writer
from evict_profile.integrations.sglang.buffers import Scores
from evict_profile.integrations.sglang.observer import Observer, accepted_nodes
from evict_profile.integrations.sglang.settings import Settings
from evict_profile.integrations.sglang.trace_writer import TraceWriter
from evict_profile.traces import Reply, Trace, load_traces
from tests.integrations.sglang.conftest import Idle
from tests.integrations.sglang.drafter import drafting
from tests.integrations.sglang.server import (
    EXPERTS,
    LAYERS,
    STEPS,
    TOP_K,
    TOPK,
    WIDTH,
    Batch,
    Context,
    ModelRunner,
    routes,
    start,
)

Patch = pytest.MonkeyPatch
DRAFT_US, FORWARD_US, REST_US = 100.0, 1000.0, 10.0


@pytest.fixture
def seen(sglang: Context, tmp_path: Path) -> Path:
    """The folder that is written to."""
    return tmp_path / "seen"


def serve(folder: Path) -> Any:
    """A server that is observed."""
    return start(Settings("observe", traces=folder))


def flush(worker: Any) -> None:
    """Write what was seen."""
    worker.evict_profile._observer.writer.flush()


def decode(worker: Any, batch: Batch, steps: int) -> list[Any]:
    """Some steps of a batch: its lengths before each, and what was committed."""
    told = []
    for _ in range(steps):
        before = batch.seq_lens.tolist()
        result = worker.forward_batch_generation(batch)
        told.append((before, result.accept_lens.tolist(), result))
        batch.after(result)
    return told


def reply_of(trace: Trace, prompt: int) -> Reply:
    """One reply by its number."""
    (found,) = [reply for reply in trace.replies if reply.prompt == prompt]
    return found


def paths(parent: list[int]) -> list[list[int]]:
    """Every path from the root, as nodes."""
    found: list[list[int]] = [[]]
    for node, above in enumerate(parent):
        found += [[*path, node] for path in found if (path or [-1])[-1] == above]
    return found


@given(st.integers(0, 10**6), st.integers(2, 9), st.data())
def test_accepted_nodes_are_the_path_that_says_it(
    seed: int, width: int, data: st.DataObject
) -> None:
    tree = drafting(seed, 1, 3, 3).drafted(width)
    parent, tokens = tree.parent[0].tolist(), tree.tokens[0].tolist()
    path = data.draw(st.sampled_from(paths(parent)))
    said = [*(tokens[node] for node in path), 99]
    spelt = [p for p in paths(parent) if [tokens[i] for i in p] == said[:-1]]
    assert spelt == [path]
    expected = [node in path for node in range(len(parent))]
    assert accepted_nodes(parent, tokens, said) == expected


def test_positions_are_tokens_committed_before(seen: Path) -> None:
    worker = serve(seen)
    told = decode(worker, Batch(2), 8)
    flush(worker)
    trace = load_traces(seen)
    for place in (0, 1):
        committed = [accepted[place] for _, accepted, _ in told]
        expected = (1 + np.cumsum([0, *committed[:-1]])).tolist()
        assert [s.position for s in reply_of(trace, place).steps] == expected


def test_contexts_are_tokens_in_the_cache(seen: Path) -> None:
    worker = serve(seen)
    told = decode(worker, Batch(2), 8)
    flush(worker)
    trace = load_traces(seen)
    for place in (0, 1):
        expected = [lengths[place] for lengths, _, _ in told]
        assert [s.context for s in reply_of(trace, place).steps] == expected


def test_a_step_commits_what_the_server_did(seen: Path) -> None:
    worker = serve(seen)
    told = decode(worker, Batch(2), 8)
    flush(worker)
    trace = load_traces(seen)
    for place in (0, 1):
        committed = [s.committed(s.best(WIDTH)) for s in reply_of(trace, place).steps]
        assert committed == [accepted[place] for _, accepted, _ in told]
    assert max(committed) > 1


def test_trees_are_whole(seen: Path, monkeypatch: Patch) -> None:
    drafted = []
    keep = Observer.drafted
    monkeypatch.setattr(
        Observer, "drafted", lambda self, tree: (drafted.append(tree), keep(self, tree))
    )
    last = Scores.last
    monkeypatch.setattr(Scores, "last", lambda self, size: last(self, size).clone())
    worker = serve(seen)
    decode(worker, Batch(2), 5)
    flush(worker)
    trace = load_traces(seen)
    for place in (0, 1):
        for tree, step in zip(drafted, reply_of(trace, place).steps, strict=True):
            assert step.parent.tolist() == tree.parent[place].tolist()
            assert step.depth.tolist() == tree.depth[place].tolist()
            assert step.path_prob.tolist() == tree.path_prob[place].tolist()


def test_routes_are_each_nodes_own(seen: Path) -> None:
    worker = serve(seen)
    decode(worker, Batch(2), 3)
    flush(worker)
    trace = load_traces(seen)
    ran = torch.stack([routes(layer, 2 * WIDTH) for layer in range(LAYERS)], dim=1)
    for place in (0, 1):
        own = ran[place * WIDTH : (place + 1) * WIDTH].numpy()
        for step in reply_of(trace, place).steps:
            assert step.routes is not None
            assert np.array_equal(step.routes, own)


def test_requests_are_told_apart(seen: Path) -> None:
    worker = serve(seen)
    one, two, three = Batch(1), Batch(2), Batch(1, first=2)
    for batch in (one, two, three):
        decode(worker, batch, 2)
    two.reqs.reverse()
    decode(worker, two, 1)
    flush(worker)
    trace = load_traces(seen)
    assert [len(reply.steps) for reply in trace.replies] == [5, 3, 2]


def test_temperatures_are_the_requests(seen: Path) -> None:
    worker, batch = serve(seen), Batch(2)
    batch.reqs[1].sampling_params = SimpleNamespace(top_k=-1, temperature=0.7)
    decode(worker, batch, 1)
    flush(worker)
    assert load_traces(seen).temperatures == (0.0, 0.7)


def test_prefills_are_not_recorded(seen: Path) -> None:
    worker = serve(seen)
    decode(worker, Batch(2), 1)
    worker.forward_batch_generation(Batch(2, "extend"))
    flush(worker)
    assert len(load_traces(seen).steps) == 2


def test_prefills_wait_for_nothing(seen: Path, monkeypatch: Patch) -> None:
    worker = serve(seen)
    decode(worker, Batch(2), 1)
    read = []
    monkeypatch.setattr(Observer, "_now_us", lambda self: read.append(0) or 0.0)
    batch = Batch(2, "extend")
    worker.forward_batch_generation(batch)
    worker.runner.forward(batch, 4, worker.route)
    assert not read


@pytest.fixture
def clock(monkeypatch: Patch) -> Iterator[SimpleNamespace]:
    """A clock that the fake server moves on."""
    stages = {"draft": DRAFT_US, "forward": FORWARD_US, "rest": REST_US}
    now = SimpleNamespace(us=0.0, slower=1.0)
    monkeypatch.setattr(Observer, "_now_us", lambda self: now.us)

    def tick(stage: str) -> None:
        now.us += stages[stage] * now.slower

    init = ModelRunner.__init__

    def ticking(self: ModelRunner, layers: int = LAYERS) -> None:
        init(self, layers)
        self.tick = tick

    monkeypatch.setattr(ModelRunner, "__init__", ticking)
    return now


def test_a_steps_time_is_split_by_stages(seen: Path, clock: SimpleNamespace) -> None:
    worker = serve(seen)
    decode(worker, Batch(2), 3)
    flush(worker)
    for step in load_traces(seen).steps:
        assert step.times is not None
        assert step.times.draft_us == (DRAFT_US, *[0.0] * (STEPS - 1))
        assert step.times.verify_us == FORWARD_US
        assert step.times.fixed_us == REST_US


def test_clocks_are_medians_by_batch(seen: Path, clock: SimpleNamespace) -> None:
    worker = serve(seen)
    for slower in (2.0, 1.0, 9.0):
        clock.slower = slower
        decode(worker, Batch(1), 1)
    clock.slower = 5.0
    decode(worker, Batch(3), 1)
    flush(worker)
    found = [
        (clock.batch, clock.draft_us, clock.fixed_us, clock.plain_fixed_us)
        for clock in load_traces(seen).clocks
    ]
    assert found == [
        (batch, (0.0, *[slower * DRAFT_US] * STEPS), slower * REST_US, slower * REST_US)
        for batch, slower in ((1, 2.0), (3, 5.0))
    ]


def test_copying_counts_for_no_stage(
    seen: Path, clock: SimpleNamespace, monkeypatch: Patch
) -> None:
    row = Observer._row

    def slow(self: Observer, *args: Any) -> Any:
        clock.us += 1e6
        return row(self, *args)

    monkeypatch.setattr(Observer, "_row", slow)
    worker = serve(seen)
    decode(worker, Batch(2), 1)
    flush(worker)
    (step, _) = load_traces(seen).steps
    assert step.times is not None
    assert step.times.fixed_us == REST_US
    assert step.times.draft_us[0] == DRAFT_US


def test_what_was_recorded_on_is_said(seen: Path) -> None:
    worker = serve(seen)
    decode(worker, Batch(1), 1)
    flush(worker)
    about = load_traces(seen).about
    assert (about.layers, about.experts, about.top_k) == (LAYERS, EXPERTS, TOP_K)
    assert (about.depth, about.topk, about.nodes) == (STEPS, TOPK, WIDTH - 1)
    assert (about.engine, about.engine_version) == ("sglang", "0.5.20")
    assert about.model == "tiny" and about.device


def test_many_experts_take_two_bytes(seen: Path) -> None:
    runner = ModelRunner()
    for layer in runner.model:
        layer.num_experts = 300
    worker = start(Settings("observe", traces=seen), runner=runner)
    decode(worker, Batch(1), 1)
    flush(worker)
    step = load_traces(seen).steps[0]
    assert step.routes is not None
    assert step.routes.shape == (WIDTH, LAYERS, TOP_K)


def parts(folder: Path) -> list[Path]:
    """What was written, in order."""
    return sorted(folder.iterdir())


def test_parts_are_written_when_enough_is_there(seen: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(trace_writer, "STEPS_PER_PART", 3)
    worker = serve(seen)
    told = decode(worker, Batch(2), 7)
    assert [len(pq.read_table(part)) for part in parts(seen)] == [6, 6]
    flush(worker)
    trace = load_traces(seen)
    assert [len(reply.steps) for reply in trace.replies] == [7, 7]
    tokens = 1 + sum(accepted[0] for _, accepted, _ in told)
    assert trace.replies[0].tokens == tokens


def test_parts_are_written_when_the_server_is_idle(seen: Path, idle: Idle) -> None:
    """SGLang kills its processes, so there is no last moment to write in."""
    worker = serve(seen)
    decode(worker, Batch(2), 2)
    assert not parts(seen)
    idle.now(later_s=2 * trace_writer.IDLE_S)
    assert len(load_traces(seen).steps) == 4


def test_a_busy_server_is_not_made_to_wait(seen: Path, idle: Idle) -> None:
    worker = serve(seen)
    decode(worker, Batch(2), 2)
    idle.now()
    assert not parts(seen)


def test_an_idle_server_writes_nothing_twice(seen: Path) -> None:
    worker = serve(seen)
    flush(worker)
    decode(worker, Batch(2), 2)
    flush(worker)
    flush(worker)
    assert len(parts(seen)) == 1


def test_writing_that_fails_is_told_by_the_next_step(
    seen: Path,
    idle: Idle,
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = serve(seen)
    decode(worker, Batch(2), 1)

    def full(*args: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(TraceWriter, "flush", full)
    idle.now(later_s=2 * trace_writer.IDLE_S)
    decode(worker, Batch(2), 2)
    assert not worker.evict_profile.follows
    assert caplog.text.count("whole trees are verified: the disk is full") == 1


def test_servers_write_beside_each_other(seen: Path, monkeypatch: Patch) -> None:
    """Also one that has the same process id as the one before, as in a container."""
    for started_s in (1e9, 2e9):
        monkeypatch.setattr(trace_writer.time, "time", lambda at=started_s: at)
        worker = serve(seen)
        decode(worker, Batch(2), 2)
        flush(worker)
    assert len(parts(seen)) == 2
    assert all(str(os.getpid()) in part.name for part in parts(seen))
    trace = load_traces(seen)
    assert [len(reply.steps) for reply in trace.replies] == [2] * 4


def test_a_tree_that_is_not_whole_is_left_out(seen: Path, monkeypatch: Patch) -> None:
    """SGLang ignores a node whose parent it did not choose, so that nothing is known
    of it; its reply goes on."""
    keep = Observer.drafted

    def torn(self: Observer, tree: Any) -> None:
        keep(self, tree)
        if self.worker.log.count("draft") != 2:
            return
        # The last of all children: others are more probable than its parent.
        index = tree.index.clone()
        index[0, -1] = TOPK + 2 * TOPK**2 - 1
        parent = int(tree.parent_list[0, int(index[0, -1]) // TOPK])
        index[0] = torch.where(index[0] == parent, parent - 1, index[0])
        self._drafted = replace(self._drafted, index=index)

    worker = serve(seen)
    monkeypatch.setattr(Observer, "drafted", torn)
    told = decode(worker, Batch(2), 3)
    flush(worker)
    torn_reply, whole = load_traces(seen).replies
    committed = [accepted[0] for _, accepted, _ in told]
    positions = [1, 1 + sum(committed[:2])]
    assert [step.position for step in torn_reply.steps] == positions
    assert len(whole.steps) == 3


def test_what_is_recorded_is_locked_against_the_writer(seen: Path) -> None:
    """A step that ends waits for a part that is being written."""
    worker = serve(seen)
    lock = worker.evict_profile._observer.writer._lock
    with ThreadPoolExecutor() as pool:
        with lock:
            ended = pool.submit(decode, worker, Batch(2), 1)
            wait([ended], timeout=0.2)
            assert not ended.done()
        assert ended.result(10)

"""What a server drafts and accepts is written down, and read back as it was."""

import os
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.integrations.environment import Settings
from evict_profile.integrations.sglang import observer
from evict_profile.integrations.sglang.modes import VerifyTimer
from evict_profile.integrations.sglang.observer import (
    Observer,
    TraceWriter,
    accepted_nodes,
)
from evict_profile.integrations.sglang.tree import depths
from evict_profile.traces import Trace, load_traces
from tests.integrations.sglang.drafter import drafting
from tests.integrations.sglang.server import (
    EXPERTS,
    LAYERS,
    STEPS,
    TOP_K,
    TOPK,
    WIDTH,
    Batch,
    ModelRunner,
    decode,
    routes,
    start,
)
from tests.traces.steps import replies_of

DRAFT_US, FORWARD_US, REST_US = 100.0, 1000.0, 10.0


@pytest.fixture
def seen(sglang, tmp_path):
    return tmp_path / "seen"


def serve(folder, **changes):
    return start(Settings("observe", traces=folder), **changes)


@pytest.fixture
def recorded(seen, idle):
    """Reads what was written, once the server has been idle."""

    def read():
        idle.now(later_s=2 * observer.IDLE_S)
        return load_traces(seen)

    return read


def paths(parent):
    found: list[list[int]] = [[]]
    for node, above in enumerate(parent):
        found += [[*path, node] for path in found if (path or [-1])[-1] == above]
    return found


@given(st.integers(0, 10**6), st.integers(2, 9), st.data())
def test_accepted_nodes_are_the_only_path_with_these_tokens(seed, width, data):
    tree = drafting(seed, 1, 3, 3).drafted(width)
    parent, tokens = tree.parent[0].tolist(), tree.tokens[0].tolist()
    path = data.draw(st.sampled_from(paths(parent)))
    said = [*(tokens[node] for node in path), 99]
    spelt = [p for p in paths(parent) if [tokens[i] for i in p] == said[:-1]]
    assert spelt == [path]
    expected = [node in path for node in range(len(parent))]
    assert accepted_nodes(parent, tokens, said) == expected


@dataclass
class Session:
    """Two requests that were observed: of each step the trees, lengths before it, and
    tokens that it committed; and what was written."""

    trees: list[Any]
    before: list[list[int]]
    committed: list[list[int]]
    trace: Trace

    def rows(self):
        return enumerate(replies_of(self.trace))


@pytest.fixture
def session(seen, recorded):
    worker, batch = serve(seen), Batch(2)
    batch.reqs[1].sampling_params = SimpleNamespace(top_k=-1, temperature=0.7)
    done = decode(worker, batch, 8)
    return Session(worker.drafted, *done, recorded())


def test_steps_are_as_the_server_counts_them(session):
    """A reply's first token is the prefill's, so that positions start at one."""
    for row, steps in session.rows():
        tokens = [each[row] for each in session.committed]
        assert [s.context for s in steps] == [each[row] for each in session.before]
        positions = (1 + np.cumsum([0, *tokens[:-1]])).tolist()
        assert [s.position for s in steps] == positions
        assert [s.committed(s.best(WIDTH)) for s in steps] == tokens
        assert max(tokens) > 1


def test_trees_are_whole(session):
    for row, steps in session.rows():
        for tree, step in zip(session.trees, steps, strict=True):
            for name in ("parent", "path_prob"):
                assert getattr(step, name).tolist() == getattr(tree, name)[row].tolist()
            assert step.depth.tolist() == depths(tree.index, TOPK)[row].tolist()


def test_routes_are_each_nodes_own(session):
    ran = torch.stack([routes(layer, 2 * WIDTH) for layer in range(LAYERS)], dim=1)
    for row, steps in session.rows():
        for step in steps:
            assert np.array_equal(step.routes, ran.split(WIDTH)[row].numpy())


def test_the_trace_says_what_it_was_recorded_on(session):
    about = session.trace.about
    assert (about.layers, about.experts, about.top_k) == (LAYERS, EXPERTS, TOP_K)
    assert (about.depth, about.topk, about.nodes) == (STEPS, TOPK, WIDTH - 1)
    assert (about.engine, about.engine_version) == ("sglang", "0.5.20")
    assert about.model == "tiny" and about.device
    assert session.trace.temperatures == (0.0, 0.7)


def test_requests_are_told_apart(seen, recorded):
    worker, one, two = serve(seen), Batch(1), Batch(2)
    decode(worker, one, 2)
    two.seq_lens[:1] = one.seq_lens
    for batch in (two, Batch(1, first=2)):
        decode(worker, batch, 2)
    two.reqs.reverse()
    two.seq_lens = two.seq_lens.flip(0)
    decode(worker, two, 1)
    trace = recorded()
    assert np.bincount(trace.reply).tolist() == [5, 3, 2]


def test_a_name_that_is_used_again_is_another_reply(seen, recorded):
    worker = serve(seen)
    for steps in (2, 1):
        decode(worker, Batch(1), steps)
    trace = recorded()
    assert trace.reply.tolist() == [0, 0, 1] and trace.position[-1] == 1


def test_a_second_prefill_commits_a_token(seen, recorded):
    """After a retraction, positions are still the server's."""
    worker, batch = serve(seen), Batch(1)
    before, _ = decode(worker, batch, 2)
    worker.forward_batch_generation(Batch(1, "extend"))
    batch.seq_lens = batch.seq_lens + 1
    before += decode(worker, batch, 1)[0]
    steps = replies_of(recorded())[0]
    assert [[step.context] for step in steps] == before
    assert [step.position for step in steps] == [step.context - 79 for step in steps]


def test_prefills_are_not_recorded_and_wait_for_nothing(seen, recorded, monkeypatch):
    worker, prefill = serve(seen), Batch(2, "extend")
    decode(worker, Batch(2), 1)
    read = []
    monkeypatch.setattr(Observer, "_now_us", lambda self: read.append(0) or 0.0)
    worker.forward_batch_generation(prefill)
    worker.runner.forward(prefill, 4, worker.route)
    assert not read
    assert len(recorded()) == 2


@pytest.fixture
def clock(monkeypatch):
    stages = {"draft": DRAFT_US, "forward": FORWARD_US, "rest": REST_US}
    now = SimpleNamespace(us=0.0, slower=1.0)
    monkeypatch.setattr(Observer, "_now_us", lambda self: now.us)
    monkeypatch.setattr(VerifyTimer, "_mark", lambda self: now.us)

    def tick(self, stage):
        now.us += stages[stage] * now.slower

    monkeypatch.setattr(ModelRunner, "tick", tick)
    return now


def test_a_steps_time_is_split_by_stages(seen, recorded, clock, monkeypatch):
    """The levels are one graph, whose time stands in the first; the observer's own work
    counts for no stage."""
    tree = Observer._tree

    def slow(self, *args):
        clock.us += 1e6
        return tree(self, *args)

    monkeypatch.setattr(Observer, "_tree", slow)
    worker = serve(seen)
    decode(worker, Batch(2), 3)
    recorded()
    for part in parts(seen):
        for row in pq.read_table(part).to_pylist():
            assert row["draft_us"] == [DRAFT_US, *[0.0] * (STEPS - 1)]
            assert (row["verify_us"], row["fixed_us"]) == (FORWARD_US, REST_US)


def test_clocks_are_medians_by_batch(seen, recorded, clock):
    worker = serve(seen)
    for slower in (2.0, 1.0, 9.0):
        clock.slower = slower
        decode(worker, Batch(1), 1)
    clock.slower = 5.0
    decode(worker, Batch(3), 1)
    found = [
        (clock.batch, clock.draft_us, clock.fixed_us, clock.plain_fixed_us)
        for clock in recorded().clocks
    ]
    assert found == [
        (batch, (0.0, *[slower * DRAFT_US] * STEPS), slower * REST_US, slower * REST_US)
        for batch, slower in ((1, 2.0), (3, 5.0))
    ]


def parts(folder):
    return sorted(folder.iterdir())


def test_parts_are_written_when_enough_is_there(seen, recorded, monkeypatch):
    monkeypatch.setattr(observer, "STEPS_PER_PART", 3)
    worker = serve(seen)
    _, committed = decode(worker, Batch(2), 7)
    assert [len(pq.read_table(part)) for part in parts(seen)] == [6, 6]
    trace = recorded()
    assert np.bincount(trace.reply).tolist() == [7, 7]
    assert trace.tokens[0] == 1 + sum(tokens[0] for tokens in committed)


def test_parts_are_written_once_when_the_server_is_idle(seen, idle):
    worker = serve(seen)
    idle.now(later_s=2 * observer.IDLE_S)
    decode(worker, Batch(2), 2)
    idle.now()
    assert not parts(seen)
    for _ in range(2):
        idle.now(later_s=2 * observer.IDLE_S)
    assert len(load_traces(seen)) == 4
    assert len(parts(seen)) == 1


def test_writing_that_fails_is_told_by_the_next_step(seen, idle, monkeypatch, caplog):
    worker = serve(seen)
    decode(worker, Batch(2), 1)

    def full(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr(TraceWriter, "flush", full)
    idle.now(later_s=2 * observer.IDLE_S)
    decode(worker, Batch(2), 2)
    assert not worker.evict_profile.active
    assert caplog.text.count("whole trees are verified: the disk is full") == 1


def test_servers_write_beside_each_other(seen, recorded, monkeypatch):
    for started_s in (1e9, 2e9):
        monkeypatch.setattr(observer.time, "time", lambda at=started_s: at)
        decode(serve(seen), Batch(2), 2)
        trace = recorded()
    assert len(parts(seen)) == 2
    assert all(str(os.getpid()) in part.name for part in parts(seen))
    assert np.bincount(trace.reply).tolist() == [2] * 4


def test_a_tree_that_is_not_whole_is_left_out(seen, recorded, monkeypatch):
    """SGLang ignores a node whose parent it did not choose, so that nothing is known
    of it; its reply goes on."""
    keep = Observer.choose

    def torn(self, batch, tree):
        keep(self, batch, tree)
        if self.worker.log.count("draft") != 2:
            return
        # The last of all children: others are more probable than its parent.
        index = tree.index.clone()
        index[0, -1] = TOPK + 2 * TOPK**2 - 1
        parent = int(tree.parent_list[0, int(index[0, -1]) // TOPK])
        index[0] = torch.where(index[0] == parent, parent - 1, index[0])
        self._drafted = replace(self._drafted, index=index)

    worker = serve(seen)
    monkeypatch.setattr(Observer, "choose", torn)
    _, committed = decode(worker, Batch(2), 3)
    torn_reply, whole = replies_of(recorded())
    positions = [1, 1 + sum(tokens[0] for tokens in committed[:2])]
    assert [step.position for step in torn_reply] == positions
    assert len(whole) == 3


def test_a_step_that_ends_waits_for_a_part_that_is_being_written(
    seen, recorded, monkeypatch
):
    worker, writing, written = serve(seen), Event(), Event()
    decode(worker, Batch(2), 1)
    write = pq.write_table

    def slow(*given):
        writing.set()
        assert written.wait(60)
        write(*given)

    monkeypatch.setattr(pq, "write_table", slow)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(recorded)
        assert writing.wait(60)
        ended = pool.submit(decode, worker, Batch(2), 1)
        assert wait([ended], timeout=0.2).not_done
        written.set()
        assert ended.result(60)
    assert len(read.result()) == 2

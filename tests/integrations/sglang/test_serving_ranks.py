"""Rank 0 decides, the others follow, and a rank that cannot ends its server."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

from evict_profile.errors import ConfigError, DataError
from evict_profile.integrations.environment import Settings
from evict_profile.integrations.sglang import compat, ranks, serving
from evict_profile.integrations.sglang.decision import Chooser, Metrics
from evict_profile.integrations.sglang.modes import FixedWidth
from evict_profile.integrations.sglang.tree import Scores
from tests.integrations.sglang.server import (
    RANK,
    WIDTH,
    Batch,
    ModelRunner,
    decode,
    start,
)

LIMIT_S = 20.0
ON = Settings("on", table=Path("t.json"))


class Group:
    """SGLang's coordinator of two ranks, which are threads here."""

    def __init__(self, rank, queue, all_ranks):
        self.rank_in_group, self.world_size, self.cpu_group = rank, 2, self
        self._queue, self._all_ranks = queue, all_ranks

    def broadcast_object(self, said):
        if self.rank_in_group == 0:
            self._queue.put(said)
            return said
        return self._queue.get(timeout=LIMIT_S)

    def broadcast(self, tensor):
        said = self.broadcast_object(tensor.clone())
        return tensor.copy_(said)

    def gather(self, found, said, group):
        self._all_ranks.said[self.rank_in_group] = said
        self._all_ranks.barrier.wait(LIMIT_S)
        found[:] = self._all_ranks.said
        self._all_ranks.barrier.wait(LIMIT_S)  # both have read it


@pytest.fixture
def groups(sglang, plain_table, monkeypatch):
    gather = lambda found, said, group: group.gather(found, said, group)  # noqa: E731
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "get_backend", lambda _: "")
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: plain_table)
    monkeypatch.setattr(RANK, "group", RANK.group)  # Of this thread, put back.
    queue, barrier = Queue(), threading.Barrier(2)
    all_ranks = SimpleNamespace(said=[None, None], barrier=barrier)
    return [Group(rank, queue, all_ranks) for rank in (0, 1)]


def side_by_side(work, groups):
    """What `work` of each rank's group gives, or the error that it raises."""
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(work, group) for group in groups]
        return [rank.exception() or rank.result() for rank in ranks]


def worker_of(group, settings=ON):
    RANK.group = group
    return start(settings, ModelRunner())


def decoded(group, settings=ON, blurred=False):
    """The nodes that each step kept, its widths, and the graphs left, on one rank."""
    worker = worker_of(group, settings)
    state, kept = worker.evict_profile, []
    last, choose = state.scores.last, state.choose
    if blurred:
        state.scores.last = lambda requests: last(requests).mul_(torch.rand(1))
        blur_places(state._mode)

    def chosen(*given):
        found = choose(*given)
        kept.append(found and found.index.tolist())
        return found

    state.choose = chosen
    for size in (1, 2, 2, 1, 2):
        worker.forward_batch_generation(Batch(size))
    return kept, worker.verified, [*state._states]


def blur_places(mode):
    choose = mode.choose

    def other(*given):
        places = choose(*given)
        return None if places is None else places.zero_()

    mode.choose = other


@pytest.mark.parametrize("width", [None, 4])
def test_ranks_whose_scores_differ_verify_the_same(
    groups, full_table, monkeypatch, width
):
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: full_table)
    settings = Settings("on", table=Path("t.json"), width=width)
    first, second = side_by_side(
        lambda group: decoded(group, settings, group.rank_in_group == 1), groups
    )
    assert first == second
    assert min(width for width, _ in first[1]) < WIDTH


def test_the_time_of_each_exchange_is_counted_once(groups, monkeypatch):
    """A rank's time goes on by a microsecond where it is read: around an exchange."""
    reads, counted = defaultdict(lambda: count(step=1000)), []
    clock = SimpleNamespace(perf_counter_ns=lambda: next(reads[threading.get_ident()]))
    monkeypatch.setattr(serving, "time", clock)
    monkeypatch.setattr(Metrics, "add", lambda self, outcome, us: counted.append(us))
    side_by_side(decoded, groups)
    assert counted == [1.0] * 4


def test_rank_0_observes_for_all(groups, tmp_path):
    settings = Settings("observe", traces=tmp_path)
    first, second = side_by_side(lambda group: decoded(group, settings), groups)
    assert first == second == (first[0], [(WIDTH, WIDTH)] * 5, [])
    observers = side_by_side(lambda group: worker_of(group, settings), groups)
    recording = [worker.evict_profile.router.recording for worker in observers]
    assert recording == [True, False]


def test_a_decision_that_fails_ends_cutting_on_all_ranks(groups, monkeypatch, caplog):
    choose, asked = Chooser.choose, []

    def fails_later(*given):
        asked.append(given)
        if len(asked) == 3:
            raise ValueError("a wrong turn")
        return choose(*given)

    monkeypatch.setattr(Chooser, "choose", fails_later)
    (_, first, graphs), (_, second, others) = side_by_side(decoded, groups)
    assert first == second
    assert graphs == others == []
    assert len(asked) == 3
    assert [width for width, _ in first[2:]] == [WIDTH] * 3
    assert caplog.text.count("evict-profile: off, whole trees are verified") == 1


@pytest.mark.parametrize(("failing", "cuts"), [(0, False), (1, True)])
def test_scores_that_are_not_kept_matter_on_rank_0_alone(
    groups, monkeypatch, caplog, failing, cuts
):
    """It decides; without its scores all ranks verify whole trees."""
    store = Scores._store

    def fails(scores, kept):
        if RANK.group.rank_in_group == failing:
            raise ValueError("a wrong turn")
        store(scores, kept)

    def stepped(group):
        worker = worker_of(group)
        decode(worker, Batch(2), 5)
        return worker.verified

    monkeypatch.setattr(Scores, "_store", fails)
    first, second = side_by_side(stepped, groups)
    assert first == second
    assert (first != [(WIDTH, WIDTH)] * 5) == cuts
    assert caplog.text.count("evict-profile: off, whole trees") == (not cuts)


@pytest.mark.parametrize("width", [None, 4])
def test_ranks_are_switched_off_and_on_together(groups, full_table, monkeypatch, width):
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: full_table)

    def stepped(group):
        worker = worker_of(group, Settings("on", table=Path("t.json"), width=width))
        for value in (0, 1):
            request = SimpleNamespace(server_args={"evict_profile": value})
            worker.evict_profile.switch(lambda *given: None, None, request)
            decode(worker, Batch(2), 3)
        return worker.verified

    first, second = side_by_side(stepped, groups)
    assert first == second
    widths = [width for width, _ in first]
    assert widths[:3] == [WIDTH] * 3
    assert max(widths[3:]) < WIDTH


def test_a_rank_that_is_refused_at_the_start_stops_the_others_from_cutting(
    groups, plain_table, monkeypatch, caplog
):
    def loads(path, allow, worker):
        if RANK.group.rank_in_group:
            raise DataError("t.json: is of another engine")
        return plain_table

    monkeypatch.setattr(compat, "load_matching_table", loads)
    first, second = side_by_side(decoded, groups)
    assert first[1] == second[1] == [(WIDTH, WIDTH)] * 5
    assert "is of another engine" in caplog.text
    assert "ranks differ in what they may verify" in caplog.text


def test_a_rank_that_does_not_answer_at_the_start_is_named(groups, monkeypatch, caplog):
    """By gloo, whose second rank has no plug-in and so never comes."""
    store, gloo = HashStore(), torch.distributed.ProcessGroupGloo
    make = lambda rank: gloo(store, rank, 2, timedelta(seconds=LIMIT_S))  # noqa: E731
    groups[0].cpu_group, groups[1].cpu_group = side_by_side(make, [0, 1])
    monkeypatch.setattr(torch.distributed, "monitored_barrier", gloo.monitored_barrier)
    monkeypatch.setattr(ranks, "START", timedelta(seconds=0.1))
    with pytest.raises(ConfigError, match=r"Ranks 1 failed .*need the plug-in"):
        worker_of(groups[0])
    assert "the server ends: not all ranks answer" in caplog.text


def test_ranks_of_different_tables_do_not_cut(
    groups, plain_table, full_table, monkeypatch, caplog
):
    def loads(path, allow, worker):
        return (plain_table, full_table)[RANK.group.rank_in_group]

    monkeypatch.setattr(compat, "load_matching_table", loads)
    first, second = side_by_side(decoded, groups)
    assert first[1] == second[1] == [(WIDTH, WIDTH)] * 5
    assert caplog.text.count("ranks differ in what they may verify") == 2


def test_a_rank_that_cannot_build_its_graphs_ends_its_server(groups, monkeypatch):
    def backend(self, init_new_workspace):
        if RANK.group.rank_in_group:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(ModelRunner, "_get_attention_backend", backend)
    _, second = side_by_side(worker_of, groups)
    assert str(second) == "out of memory"


def test_a_rank_whose_fixed_cut_fails_ends_its_server(
    groups, full_table, monkeypatch, caplog
):
    monkeypatch.setattr(compat, "load_matching_table", lambda *asked: full_table)
    monkeypatch.setattr(FixedWidth, "choose", lambda *given: 1 / 0)
    work = partial(decoded, settings=Settings("on", table=Path("t.json"), width=4))
    errors = side_by_side(work, groups)
    assert [type(error) for error in errors] == [ZeroDivisionError] * 2
    assert caplog.text.count("this rank cannot do what the others do") == 2


def test_a_rank_in_another_batch_ends_its_server(groups):
    def step(group):
        worker = worker_of(group)
        worker.forward_batch_generation(Batch(1 + group.rank_in_group))

    _, second = side_by_side(step, groups)
    assert isinstance(second, ConfigError)
    assert "ranks do not decode the same batch" in str(second)

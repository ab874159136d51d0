"""Experts that a server returns, by known ids: what the probe and a table learn."""

import numpy as np
import pytest

from evict_profile.io import data_root
from evict_profile.records import replace
from evict_profile.served.probe import routes as module
from evict_profile.served.probe.record import (
    Probed,
    RoutedExperts,
    Wave,
    append,
    read_lines,
    read_probe,
    resume,
)
from evict_profile.served.probe.routes import activated_experts
from evict_profile.served.probe.server import ServerInfo
from evict_profile.table import BatchActivation, CostTable
from tests.command import evict, refused
from tests.served.probe.fake_server import FakeServer

PATH = (
    data_root()
    / "cost_tables/composed/nvidia-h200/qwen3-30b-a3b"
    / "sglang-0.5.14-bfloat16-tp4-ep1/1.0.0.json"
)
PLAIN = ServerInfo("http://a", "vllm", "0.25.1", "m", 0, 0, 1, {"tp_size": 2})
K, LAYERS, PROMPT, COMMITTED = 8, 48, 9, 40


def cycling(number):
    """Token i uses experts 4 i to 4 i + 7 of 128, and a prompt all others' experts."""
    token = np.arange(PROMPT + COMMITTED)[:, None, None] + number
    ids = 4 * token + np.arange(LAYERS)[:, None] + np.arange(K)
    ids[:PROMPT] = np.arange(K)
    return ids % 128


def random(number):
    rng = np.random.default_rng(number)
    return rng.permuted(np.tile(np.arange(16), (50, 3, 1)), axis=2)[:, :, :4]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(module, "REPLIES", 12)
    monkeypatch.setattr(module, "DRAWS", 20)


def learn(fake, folder, *words, code=0):
    words = ("--routes", "--batch", "1,4", "--out", "runs.jsonl", *words)
    done = evict("probe", fake.url, *words, folder=folder)
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_experts_of_committed_tokens_are_counted(engine, tmp_path):
    """Four new experts a token; the prompt's are left out."""
    with FakeServer(engine, drafts=0, routes=cycling) as fake:
        done = learn(fake, tmp_path)
    [_, found] = read_lines(tmp_path / "runs.jsonl")
    assert (found.replies, found.tokens) == (12, 12 * COMMITTED)
    assert (found.top_k, len(found.layers)) == (K, LAYERS)
    n = np.arange(1, module.WIDTH + 1)
    for layer in found.layers:
        assert layer[1:] == pytest.approx(np.minimum(4 + 4 * n, 128))
    assert max(found.half_width) == pytest.approx(0.0)
    assert "480 committed tokens of 12 replies" in done.stdout


def test_what_came_in_time_is_kept(tmp_path, monkeypatch):
    """One round at least, and the round in which Ctrl-C came."""
    with FakeServer("sglang", drafts=0, routes=cycling) as fake:
        learn(fake, tmp_path, "--minutes", "1e-9")
        reached = module.Deadline.reached

        def interrupt(deadline):
            deadline.interrupted = True
            return reached(deadline)

        monkeypatch.setattr(module.Deadline, "reached", interrupt)
        learn(fake, tmp_path, code=130)
    lines = [*read_lines(tmp_path / "runs.jsonl")]
    assert [each.replies for each in lines[1::2]] == [4, 4]


def test_requests_of_a_batch_are_joined_token_by_token():
    """Replies whose experts differ: 4 requests activate 4 times one's."""
    shift = [np.arange(3) + 3 * reply for reply in range(4)]
    replies = [np.tile(ids, (40, 2)) for ids in shift]
    [four] = activated_experts(replies, [1, 4]).batches
    assert four.union[:6] == (0.0, 3.0, 6.0, 9.0, 12.0, 12.0)


def test_windows_equal_counting_sets_over_replies():
    replies = [random(number)[PROMPT:] for number in range(5)]
    found = activated_experts([each.reshape(len(each), -1) for each in replies], [1])
    for n in (1, 2, 7, 32):
        slow = [
            len(set(reply[s : s + n, layer].ravel()))
            for reply in replies
            for s in range(len(reply) - n + 1)
            for layer in range(3)
        ]
        assert found.union[n] == pytest.approx(np.mean(slow), abs=1e-3)


def test_layers_without_experts_are_left_out():
    """They are zeros in the replies of both engines."""
    replies = [random(number) for number in range(3)]
    dense = [np.concatenate([0 * e[:, :1], e], axis=1) for e in replies]
    found = [
        activated_experts([each.reshape(len(each), -1) for each in own], [1, 2])
        for own in (replies, dense)
    ]
    assert found[0] == found[1] and found[0].top_k == 4


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"routes": lambda _: np.ones((0, 1, 1))}, "--enable-return-routed-experts"),
        ({"routes": lambda _: random(0)[:20]}, "a reply needs 32"),
        ({"refuses": 400, "says": '{"message": "no such field"}'}, "no such field"),
        ({"routes": cycling, "drafts": 3}, "it drafts trees (topk 2)"),
    ],
)
def test_a_server_without_routes_is_one_sentence(faults, says, tmp_path):
    with FakeServer("sglang", **{"drafts": 0} | faults) as fake:
        done = learn(fake, tmp_path, "--batch", "1", code=2)
    assert says in done.stderr.splitlines()[-1]
    assert not (tmp_path / "runs.jsonl").exists()


def line(replies, union):
    """One line of routes: U(n) of each layer, and twice that of two requests."""
    two = [0.0, *np.repeat(2.0 * np.array(union[1:]), 2)]
    return RoutedExperts(
        replies, 40 * replies, K, (tuple(union),) * LAYERS, (0.0,) * len(union),
        (BatchActivation(2, tuple(two)),),
    )  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.jsonl"
    resume(path, Probed(PLAIN, "chat"))
    append(path, line(300, [0.0, 8.0, *np.linspace(8.5, 23.0, 30)]))
    return path


def test_a_table_gets_the_curve_and_costs_at_it(runs, tmp_path):
    before = CostTable.load(PATH)
    words = ("calibrate", str(PATH), str(runs), "--tables", str(tmp_path))
    done = evict(*words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    [path] = tmp_path.rglob("1.0.1.json")
    after = CostTable.load(path)
    assert after.activation.at(np.array([2.0, 31.0]), 1).tolist() == [8.5, 23.0]
    assert "committed tokens, chat: 12,000 of 300 replies" in done.output
    cost, own = (t.costs(1, 512).step_cost_us for t in (before, after))
    assert own[1] == pytest.approx(cost[1], rel=1e-4) and own[8] < 0.8 * cost[8]


def test_a_file_of_waves_alone_has_no_routes(tmp_path):
    path = tmp_path / "runs.jsonl"
    resume(path, Probed(PLAIN, "chat"))
    assert "holds no routes" in refused("calibrate", PATH, path, folder=tmp_path)
    words = ("calibrate", PATH, path, "--part", "1/2")
    assert "--part has no effect with routes" in refused(*words, folder=tmp_path)


def test_routes_are_no_waves(runs):
    """And waves after them are still of one server."""
    resume(runs, Probed(PLAIN, "chat"))
    append(runs, Wave(1, 1, 100.0, None, 512.0, 0, 0.0, 1.0))
    [(_, waves)] = read_probe(runs)
    assert len(waves) == 1


def test_another_model_is_refused(runs, tmp_path):
    """And the last line counts."""
    append(runs, replace(line(9, np.linspace(0, 32, 33)), top_k=4))
    says = refused("calibrate", PATH, runs, folder=tmp_path)
    assert "48 layers with 4 experts a token, and qwen" in says

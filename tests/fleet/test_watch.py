"""What is watched, where, and what a recheck's last line says."""

import shutil

import pytest

from evict_profile.fleet import watch
from evict_profile.fleet.spec import EngineEnvironment
from evict_profile.fleet.watch import (
    ANOTHER,
    Node,
    TableRecheck,
    newest_tables,
    verdict_of,
)
from evict_profile.records import replace
from evict_profile.table import CostTable


def test_the_newest_table_of_each_key_is_watched(saved_table, composed_path, tmp_path):
    """Composed ones were never measured, and those of a datasheet cannot drift."""
    home = tmp_path / "tree/gpu/model/engine"
    other = tmp_path / "tree/composed/model/engine"
    home.mkdir(parents=True)
    other.mkdir(parents=True)
    table = CostTable.load(saved_table)
    for version in ("1.0.9", "1.0.10"):
        replace(table, version=version).save(home / f"{version}.json")
    shutil.copy(composed_path, other / "1.0.0.json")
    assert list(newest_tables(tmp_path / "tree")) == [home / "1.0.10.json"]


def test_what_is_no_table_does_not_stop_the_watch(saved_table, tmp_path):
    """JSON of something else, a damaged table, and a table under a name of its own."""
    home = tmp_path / "tree/gpu/model/engine"
    home.mkdir(parents=True)
    (home / "notes.json").write_text("{}")
    (home / "1.0.1.json").write_text("{")
    shutil.copy(saved_table, home / "mine.json")
    assert list(newest_tables(tmp_path / "tree")) == [home / "mine.json"]


@pytest.mark.parametrize(
    ("status", "words", "verdict"),
    [
        (0, "this machine against the table: same within 2.1%", "same"),
        (0, "this machine against the table: unclear, may differ by 7%", "unclear"),
        (1, "this machine against the table: drifted, all cells by +9%", "drifted"),
        (1, "FAILED drift: the table's own gate", "unclear"),
        (2, "error: the runner ended with status 7", "unclear"),
        (124, "no answer in 1 min", "unclear"),
    ],
)
def test_the_last_line_is_the_verdict(status, words, verdict):
    assert verdict_of(status, words) == verdict


def test_a_device_is_known_by_how_its_fingerprint_begins():
    """A CPU's fingerprint also names its instructions."""
    node = Node("id", "host", {}, ("Intel(R) Xeon(R)", "NVIDIA H100 80GB HBM3"))
    assert node.has("Intel(R) Xeon(R) avx512f")
    assert node.has("NVIDIA H100 80GB HBM3")
    assert not node.has("NVIDIA H200")


class Answers:
    """As much of Ray as a recheck asks for: what each node answers, None for never."""

    class exceptions:  # noqa: N801, as Ray has it
        RayError = TimeoutError

    def __init__(self, **by_node):
        self.by_node, self.cancelled = by_node, list[str]()

    def remote(self, *given):
        return self if callable(given[0]) else self.node

    def options(self, scheduling_strategy, **asked):
        self.node, self.asked = scheduling_strategy, asked
        return self

    def get(self, task, timeout):
        answer = self.by_node[task]
        if answer is None:
            raise TimeoutError
        return answer

    def cancel(self, task, force):
        self.cancelled.append(task)


ELSEWHERE = (2, f"error: this is {ANOTHER}")
SAME = (0, "this machine against the table: same within 2%")


@pytest.mark.parametrize(
    ("answers", "verdict", "host"),
    [
        ({"a": SAME}, "same", "host-a"),
        ({"a": ELSEWHERE, "b": SAME}, "same", "host-b"),
        ({"a": ELSEWHERE, "b": ELSEWHERE}, "gone", "host-b"),
        ({"a": None, "b": SAME}, "unclear", "host-a"),
        ({}, "gone", ""),
    ],
)
def test_the_first_machine_that_is_the_tables_answers(
    saved_table, monkeypatch, answers, verdict, host
):
    monkeypatch.setattr(watch, "at_node", lambda node: node)
    ray, table = Answers(**answers), CostTable.load(saved_table)
    nodes = [Node(name, f"host-{name}", {"machine": 1.0}, ()) for name in answers]
    recheck = TableRecheck(ray, saved_table, table, EngineEnvironment("x"), nodes, 1.0)
    recheck.start()
    found = recheck.answer()
    assert (found.verdict, found.host) == (verdict, host)
    assert ray.cancelled == ["a"] * (verdict == "unclear")
    if answers:
        assert ray.asked["resources"] == {"machine": 1}

"""What a server learnt goes on after a restart, with the same table alone."""

import pytest

from evict_profile.integrations.sglang import state
from evict_profile.integrations.sglang.state import StateFile
from evict_profile.runtime.learning import Learner
from evict_profile.runtime.machine import Machine

BOUNDS = 0.7, 1.4
PARTS = 100.0, 50.0, 60.0


@pytest.fixture
def machine():
    machine = Machine(Learner(BOUNDS))
    for _ in range(40):
        machine.observe(8, PARTS, 130.0)
    return machine


def saved(path, machine, table="a" * 64):
    """A file as a server leaves it that is killed after a minute."""
    file = StateFile(path, table)
    file._due_s = 0.0
    file.save_when_due(machine)
    return file


def test_a_killed_server_goes_on_from_its_file(tmp_path, machine):
    path = tmp_path / "state.json"
    saved(path, machine)
    other = Machine(Learner(BOUNDS))
    StateFile(path, "a" * 64).restore(other)
    assert other.learnt("") == machine.learnt("")
    assert other.learner.version > 0
    for each in (machine, other):
        each.observe(8, PARTS, 170.0)
    assert other.learnt("") == machine.learnt("")


def test_what_another_table_taught_is_neither_read_nor_overwritten(
    tmp_path, machine, caplog
):
    path = tmp_path / "state.json"
    saved(path, machine)
    before, fresh = path.read_text(), Machine(Learner(BOUNDS))
    file = StateFile(path, "b" * 64)
    file.restore(fresh)
    file._due_s = 0.0
    file.save_when_due(machine)
    assert fresh.learner.version == 0
    assert path.read_text() == before
    assert "was learnt with another table" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"level": 1}', '{"steps": "x"}'])
def test_a_damaged_file_is_named_and_kept(tmp_path, text, caplog):
    path = tmp_path / "state.json"
    path.write_text(text)
    fresh = Machine(Learner(BOUNDS))
    StateFile(path, "a" * 64).restore(fresh)
    assert fresh.learner.version == 0
    assert str(path) in caplog.text
    assert path.read_text() == text


def test_a_folder_that_cannot_be_written_ends_no_step(tmp_path, machine, caplog):
    (tmp_path / "file").write_text("")
    saved(tmp_path / "file" / "state.json", machine)
    assert "EVICT_PROFILE_STATE" in caplog.text


def test_the_file_is_written_once_a_minute(tmp_path, machine):
    path = tmp_path / "state.json"
    file = StateFile(path, "a" * 64)
    file.save_when_due(machine)
    assert not path.exists()
    file._due_s -= state.SAVE_EVERY_S
    file.save_when_due(machine)
    assert path.exists()

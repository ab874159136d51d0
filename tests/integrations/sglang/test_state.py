"""What a server learnt goes on after a restart, with the same table alone."""

import pytest

from evict_profile.integrations.sglang import state
from evict_profile.integrations.sglang.state import StateFile
from evict_profile.runtime.learning import Learner

PARTS = 100.0, 50.0, 60.0


@pytest.fixture
def learner():
    learner = Learner()
    for _ in range(40):
        learner.observe(PARTS, 130.0)
    return learner


def saved(path, learner, table="a" * 64):
    """A file as a server leaves it that is killed after a minute."""
    file = StateFile(path, table)
    file._due_s = 0.0
    file.save_when_due(learner)
    return file


def test_a_killed_server_goes_on_from_its_file(tmp_path, learner):
    path = tmp_path / "state.json"
    saved(path, learner)
    other = Learner()
    StateFile(path, "a" * 64).restore(other)
    assert other.learnt("") == learner.learnt("")
    assert other.version > 0
    for each in (learner, other):
        each.observe(PARTS, 170.0)
    assert other.learnt("") == learner.learnt("")


def test_what_another_table_taught_is_neither_read_nor_overwritten(
    tmp_path, learner, caplog
):
    path = tmp_path / "state.json"
    saved(path, learner)
    before, fresh = path.read_text(), Learner()
    file = StateFile(path, "b" * 64)
    file.restore(fresh)
    file._due_s = 0.0
    file.save_when_due(learner)
    assert fresh.version == 0
    assert path.read_text() == before
    assert "was learnt with another table" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"level": 1}', '{"steps": "x"}'])
def test_a_damaged_file_is_named_and_kept(tmp_path, text, caplog):
    path = tmp_path / "state.json"
    path.write_text(text)
    fresh = Learner()
    StateFile(path, "a" * 64).restore(fresh)
    assert fresh.version == 0
    assert str(path) in caplog.text
    assert path.read_text() == text


def test_a_folder_that_cannot_be_written_ends_no_step(tmp_path, learner, caplog):
    (tmp_path / "file").write_text("")
    saved(tmp_path / "file" / "state.json", learner)
    assert "EVICT_PROFILE_STATE" in caplog.text


def test_the_file_is_written_once_a_minute(tmp_path, learner):
    path = tmp_path / "state.json"
    file = StateFile(path, "a" * 64)
    file.save_when_due(learner)
    assert not path.exists()
    file._due_s -= state.SAVE_EVERY_S
    file.save_when_due(learner)
    assert path.exists()

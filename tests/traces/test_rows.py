"""A runner's answer becomes rows, or the sentence says what is wrong with it."""

import pytest

from evict_profile.errors import RunnerError
from evict_profile.traces.plan import ReplyKey
from evict_profile.traces.rows import STEP_FIELDS, rows_of
from evict_profile.traces.schema import COLUMNS
from tests.traces.synthetic import Plan, reply_steps

KEY = ReplyKey("code", 2, 0, 0.0)


def test_one_row_a_step_with_all_columns() -> None:
    """Each carries its reply."""
    rows = rows_of(KEY, reply_steps(Plan(tokens=5), KEY))
    assert rows.schema == COLUMNS
    assert rows.column("position").to_pylist() == [0, 1, 2, 3, 4]
    assert set(rows.column("prompt").to_pylist()) == {2}


@pytest.mark.parametrize("name", sorted(STEP_FIELDS))
def test_a_field_that_lacks_is_named(name: str) -> None:
    """With all that are needed."""
    (step,) = reply_steps(Plan(tokens=1), KEY)
    del step[name]
    with pytest.raises(RunnerError, match=f"a step without {name}; a step needs acc"):
        rows_of(KEY, [step])


@pytest.mark.parametrize(
    "change",
    [
        {"routes": "not base64!"},
        {"routes": 3},
        {"parent": ["root"]},
        {"parent": 7},
        {"position": "first"},
        {"position": None, "token": [1 << 40]},
    ],
)
def test_a_field_of_another_type_is_refused(change: dict[str, object]) -> None:
    """Before it is stored."""
    (step,) = reply_steps(Plan(tokens=1), KEY)
    with pytest.raises(RunnerError, match="answered a step that is none"):
        rows_of(KEY, [{**step, **change}])

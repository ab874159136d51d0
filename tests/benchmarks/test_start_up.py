"""The error of a profile with dummy tokens, on samples whose cost is known."""

import json

import pytest

from benchmarks.start_up import by, errors_of, main
from evict_profile.sweep.store import Store
from tests.factories import EXPERT_US, LAYERS, MODEL, START_US, TOKEN_US, write_run


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run without noise worth speaking of."""
    return write_run(tmp_path_factory.mktemp("run"), noise=1e-4)


def cost_us(union, tokens, seats):
    """The known cost of a forward."""
    return LAYERS * (START_US + EXPERT_US * union + TOKEN_US * tokens + 0.05 * seats)


def test_errors_are_those_of_the_known_cost(store):
    """Experts that a dummy profile does not wake, over what a step really costs."""
    cells = errors_of(store)
    assert len(cells) > 0
    for cell in cells.itertuples():
        seats = (cell.width * cell.batch, cell.batch * cell.context)
        expected = cost_us(MODEL.moe.top_k, *seats) / cost_us(cell.union, *seats) - 1
        assert cell.error == pytest.approx(expected, abs=0.01)


def test_the_error_grows_with_width(store):
    """Wide trees wake experts, of which a dummy profile knows nothing."""
    found = by(errors_of(store), "width")
    errors = [found[width]["median_error"] for width in sorted(found)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < -0.2


def test_the_script_writes_both_axes(store, tmp_path):
    """By width and by batch, with every seat beside them."""
    out = tmp_path / "start_up.json"
    assert main([str(store.folder), "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert set(found) == {"cells", "by_width", "by_batch"}


def test_a_run_with_nothing_to_compare_is_a_sentence(store, tmp_path, capsys):
    """Forced cells alone tell nothing of what a router wakes."""
    forced = Store(tmp_path / "run")
    forced.create(store.header())
    frame = store.frame()
    forced.add(frame[frame["split"] != "natural"], 1, 0)
    out = tmp_path / "start_up.json"
    assert main([str(forced.folder), "--out", str(out)]) == 2
    assert "'natural: true'" in capsys.readouterr().err
    assert not out.exists()

"""A server gets the table that covers it, or the reason why it gets none."""

import pytest

from evict_profile.errors import DataError
from evict_profile.integrations.matching import load_matching_table, shape_of
from evict_profile.records import replace
from evict_profile.table import COMPOSED, CostTable, Key

OBSERVED = tuple(name for name in Key.names() if name != "model")


def load(path, allow="", shape=None, **observed):
    """As a server of the table's own key and shape, but for what is given."""
    table = CostTable.load(path)
    own = {name: getattr(table.key, name) for name in OBSERVED}
    return load_matching_table(
        path, own | observed, shape or shape_of(table), allow, "fix it"
    )


def test_the_table_of_the_server_is_loaded(saved_table):
    for allow in ("", COMPOSED):
        found = load(saved_table, allow)
        assert found.sha256 == CostTable.load(saved_table).sha256
        assert (found.key.model, found.caveats) == ("tiny", ())


@pytest.mark.parametrize("name", OBSERVED)
def test_another_engines_table_is_refused(saved_table, name):
    with pytest.raises(
        DataError, match=f"another engine .{name}: other here.*; fix it"
    ):
        load(saved_table, **{name: "other"})


def test_another_models_table_is_refused(saved_table):
    shape = shape_of(CostTable.load(saved_table)) | {"top-k": 8}
    with pytest.raises(DataError, match="top-k 4, and the server's has 8; fix it"):
        load(saved_table, shape=shape)


def test_a_composed_table_is_refused_unless_it_is_allowed(composed_path):
    unknown = dict.fromkeys(("attention_backend", "moe_backend"), "other")
    with pytest.raises(DataError, match=r"ALLOW=composed .*fix it"):
        load(composed_path)
    table = load(composed_path, COMPOSED, **unknown)
    context = min(table.axes.context)
    assert table.origin == COMPOSED
    assert "composed from public rows" in table.costs(1, context).caveats[0]


def test_a_composed_table_of_another_version_marks_its_costs(composed_path, caplog):
    assert "9.9" not in str(load(composed_path, COMPOSED).caveats)
    table = load(composed_path, COMPOSED, engine_version="9.9")
    says = "estimated for sglang 0.5.14, and this server runs 9.9"
    assert says in caplog.text
    assert says in table.costs(1, min(table.axes.context)).caveats[0]


@pytest.mark.parametrize(
    ("served", "covered"),
    [
        ("fp8", "fp8_block"),
        ("mxfp4", "w4a16_mxfp4"),
        ("gpt_oss_mxfp4", "w4a16_mxfp4"),
        ("modelopt_fp4", "nvfp4"),
    ],
)
def test_weights_are_compared_by_the_name_of_their_format(
    served, covered, composed_path, tmp_path
):
    table, path = CostTable.load(composed_path), tmp_path / "table.json"
    replace(table, key=replace(table.key, dtype=covered, engine="vllm")).save(path)
    assert load(path, COMPOSED, dtype=served).key.dtype == covered
    with pytest.raises(DataError, match="dtype: bfloat16 here"):
        load(path, COMPOSED, dtype="bfloat16")


def test_sglang_tells_fp8_of_tensors_from_fp8_of_blocks(composed_path, tmp_path):
    table, path = CostTable.load(composed_path), tmp_path / "table.json"
    replace(table, key=replace(table.key, dtype="fp8_block")).save(path)
    with pytest.raises(DataError, match="dtype: fp8 here"):
        load(path, COMPOSED, dtype="fp8")


@pytest.mark.parametrize("name", ["gpu", "dtype", "engine", "tp", "ep"])
def test_a_composed_table_of_another_device_is_refused(composed_path, name):
    with pytest.raises(DataError, match=f"{name}: other here"):
        load(composed_path, COMPOSED, **{name: "other"})

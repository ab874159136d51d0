"""SGLang's own loader of cost tables, on the files that are exported for it."""

import json

import pytest

from evict_profile.fit.export import make_table
from evict_profile.integrations.exporters import write_format
from evict_profile.records import replace
from tests.exported import sglang_reads_us
from tests.factories import DRAFTING


@pytest.fixture(scope="module")
def table(fitted):
    return replace(make_table(fitted, samples_sha256=""), drafting=DRAFTING)


def test_steps_per_second_are_read_by_floor(table, tmp_path):
    from sglang.srt.speculative.dspark_components import dspark_sps

    path = tmp_path / "sps.json"
    write_format(table, "sglang-sps", path, 3)
    loaded = dspark_sps.load_sps_table_from_path(str(path))
    assert isinstance(loaded, dspark_sps.SpsCostTable)
    assert not dspark_sps.is_uninitialized_sps_table(loaded)
    fields = json.loads(path.read_text(encoding="utf-8"))
    for tokens in range(50):
        assert 1e6 / loaded.lookup(tokens) == sglang_reads_us(fields, tokens)

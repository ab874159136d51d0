"""SGLang's own loader of cost tables, on the files that are exported for it."""

import json
from bisect import bisect_right
from pathlib import Path

import numpy as np
import pytest

from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import Fitted
from evict_profile.integrations.exporters import ExportOptions, write_format
from evict_profile.table import CostTable


@pytest.fixture(scope="module")
def table(fitted: Fitted) -> CostTable:
    return make_table(fitted, samples_sha256="")


def test_steps_per_second_are_read_by_floor(table: CostTable, tmp_path: Path) -> None:
    """At every token, and beyond the last sample."""
    from sglang.srt.speculative.dspark_components import dspark_sps

    path = tmp_path / "sps.json"
    write_format(table, "sglang-sps", path, ExportOptions())
    loaded = dspark_sps.load_sps_table_from_path(str(path))
    assert isinstance(loaded, dspark_sps.SpsCostTable)
    assert not dspark_sps.is_uninitialized_sps_table(loaded)
    fields = json.loads(path.read_text(encoding="utf-8"))
    for tokens in range(50):
        index = max(0, bisect_right(fields["sample_batch_tokens"], tokens) - 1)
        assert loaded.lookup(tokens) == fields["sample_steps_per_sec"][index]


def test_sums_are_read_between_probes_and_beyond(
    table: CostTable, tmp_path: Path
) -> None:
    """SGLang tells its formats apart by the text "bias_seconds"."""
    from sglang.srt.speculative.dspark_components import dspark_sps

    path = tmp_path / "additive.json"
    write_format(table, "sglang-sps-additive", path, ExportOptions())
    loaded = dspark_sps.load_sps_table_from_path(str(path))
    assert isinstance(loaded, dspark_sps.SpsAdditiveCostTable)
    found = json.loads(path.read_text(encoding="utf-8"))
    for requests in range(1, 4):
        alpha_s = np.interp(requests, found["bs_probes"], found["alpha_seconds"])
        for budget in range(50):
            tokens = requests + budget
            theta_s = np.interp(tokens, found["m_probes"], found["theta_seconds"])
            expected_s = found["bias_seconds"] + alpha_s + theta_s
            step_s = loaded.step_time(num_reqs=requests, budget=budget)
            assert step_s == pytest.approx(expected_s)

"""The page on which a reader chooses a table; tests/browser runs its script."""

import json
import re

import pytest

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.report.explore import explore_page
from evict_profile.served.growth import unserved
from evict_profile.served.step import ServedStep
from evict_profile.table import CostTable
from tests.command import evict


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


@pytest.mark.parametrize("name", ["saved_table", "workload_table"])
def test_a_measured_step_is_looked_up_with_its_interval(name, request):
    table = CostTable.load(request.getfixturevalue(name))
    served, context = ServedStep.of(table), min(table.axes.context)
    [shown] = data_of(explore_page([table]))["tables"]
    assert {*table.axes.batch} <= {step["batch"] for step in shown["batches"]}
    for step in shown["batches"]:
        batch, ratios = step["batch"], step["ratios"]
        assert not served.covers(batch, len(ratios) + 1, context) or len(ratios) > 8
        for k, ratio in enumerate(ratios):
            found = served.ratio(batch, k + 1, k, context)
            ends = (found.value, found.low, found.high)
            assert ratio == pytest.approx(ends, rel=1e-5)


def test_an_estimated_step_is_the_growth_of_kernels_beside_that_of_servers(
    composed_path,
):
    table = CostTable.load(composed_path)
    data = data_of(explore_page([table]))
    [shown], context = data["tables"], min(table.axes.context)
    assert shown["estimated"] and not shown["flags"]
    for step in shown["batches"]:
        batch, us = step["batch"], table.step_cost_us(step["batch"], context)
        kernels = [us[batch * (k + 1)] / us[batch] for k in range(len(step["ratios"]))]
        assert [each for [each] in step["ratios"]] == pytest.approx(kernels, rel=1e-5)
    known = unserved(4).value
    assert data["servers"][3] == pytest.approx(
        (known.value, known.low, known.high), rel=1e-5
    )


def test_a_table_that_covers_no_draft_is_refused(saved_table):
    table = CostTable.load(saved_table)
    narrow = replace(table.fit, domain=table.fit.domain | {"width": (1, 1)})
    with pytest.raises(ConfigError, match="covers no draft at any of its batches"):
        explore_page([replace(table, fit=narrow).read_anew()])


def test_the_page_has_the_newest_table_of_each_key(saved_table):
    table = CostTable.load(saved_table)
    other = replace(table, key=replace(table.key, tp=2))
    versions = [replace(table, version=version) for version in ("1.0.10", "1.0.9")]
    shown = data_of(explore_page([*versions, other]))["tables"]
    assert {each["version"] for each in shown} == {"1.0.10", other.version}


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("sglang", "--speculative-num-draft-tokens 4"),
        ("vllm", '"num_speculative_tokens": 3'),
        ("trtllm", "max_draft_len: 3"),
    ],
)
def test_flags_are_the_exporters_of_each_draft_length(saved_table, engine, flag):
    table = CostTable.load(saved_table)
    own = replace(table, key=replace(table.key, engine=engine, tp=4))
    [shown] = data_of(explore_page([own]))["tables"]
    assert flag in shown["flags"][2]
    assert re.search(r"--(tp|tensor-parallel)[-_]size 4", shown["flags"][2])


def test_an_engine_without_an_exporter_has_no_flags(saved_table):
    table = CostTable.load(saved_table)
    own = replace(table, key=replace(table.key, engine="torch_moe"))
    assert data_of(explore_page([own]))["tables"][0]["flags"] == []


def test_what_a_table_states_cannot_end_the_script(saved_table):
    table = CostTable.load(saved_table)
    odd = replace(table, caveats=("</script><b>",))
    page = explore_page([odd])
    assert "</script><b>" not in page
    assert data_of(page)["tables"][0]["caveats"] == ["</script><b>"]


def test_report_of_a_folder_is_a_page_of_its_tables(saved_table, tmp_path):
    done = evict("report", saved_table.parent, folder=tmp_path)
    assert done.exit_code == 0, done.output
    [shown] = data_of((tmp_path / "explore.html").read_text())["tables"]
    assert shown["model"] == CostTable.load(saved_table).key.model

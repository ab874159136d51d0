"""The page on which a reader chooses a table; tests/browser runs its script."""

import json
import math
import re

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor
from evict_profile.records import replace
from evict_profile.report.explore import explore_page
from evict_profile.table import CostTable
from tests.command import evict


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


def interval(step, k, ratio):
    """As the page's script computes it from the parts of a step."""
    if "times" in step:
        grown, times = ratio - 1.0, step["times"]
        high = ratio + math.hypot(grown * (times - 1.0), step["apart"][k])
        return ratio - grown * (1.0 - 1.0 / times), high
    us = step["verify_us"]
    drafting = math.log(ratio * us[0] / us[k]) if step["assumed"] else 0.0
    factor = math.exp(math.hypot(step["half"][k], drafting))
    return ratio / factor, ratio * factor


@pytest.mark.parametrize("origin", ["composed_path", "saved_table", "workload_table"])
def test_the_parts_of_a_step_give_the_break_even_of_advise(origin, request):
    table = CostTable.load(request.getfixturevalue(origin))
    advisor = Advisor.of(table, of_rate(0.8))
    [shown] = data_of(explore_page([table]))["tables"]
    assert {*advisor.batches} <= {step["batch"] for step in shown["batches"]}
    for step in shown["batches"]:
        ways = advisor.at(step["batch"]).ways
        assert len(step["verify_us"]) == len(ways)
        plain_us = step["verify_us"][0] + step["beside_us"][0]
        for k, way in enumerate(ways[1:], 1):
            ratio = (step["verify_us"][k] + step["beside_us"][k]) / plain_us
            low, high = interval(step, k, ratio)
            assert ratio == pytest.approx(way.ratio, rel=1e-4)
            assert way.committed / high == pytest.approx(way.speed.low, rel=1e-4)
            assert way.committed / low == pytest.approx(way.speed.high, rel=1e-4)


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
def test_flags_are_the_exporters_of_each_draft_length(composed_path, engine, flag):
    table = CostTable.load(composed_path)
    own = replace(table, key=replace(table.key, engine=engine, tp=4))
    [shown] = data_of(explore_page([own]))["tables"]
    assert flag in shown["flags"][2]
    assert re.search(r"--(tp|tensor-parallel)[-_]size 4", shown["flags"][2])


def test_an_engine_without_an_exporter_has_no_flags(composed_path):
    table = CostTable.load(composed_path)
    own = replace(table, key=replace(table.key, engine="torch_moe"))
    assert data_of(explore_page([own]))["tables"][0]["flags"] == []


def test_what_a_table_states_cannot_end_the_script(saved_table):
    table = CostTable.load(saved_table)
    odd = replace(table, caveats=("</script><b>",))
    page = explore_page([odd])
    assert "</script><b>" not in page
    assert data_of(page)["tables"][0]["caveats"] == ["</script><b>"]


def test_report_takes_one_table_or_explores_folders(saved_table, tmp_path):
    done = evict("report", "--explore", saved_table.parent, folder=tmp_path)
    assert done.exit_code == 0, done.output
    [shown] = data_of((tmp_path / "explore.html").read_text())["tables"]
    assert shown["model"] == CostTable.load(saved_table).key.model

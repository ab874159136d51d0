"""The page on which a reader chooses a table; tests/browser runs its script."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlencode

import pytest

from evict_profile.advice.advise import Advisor
from evict_profile.advice.answer import stated_ways
from evict_profile.advice.decide import decide
from evict_profile.advice.lengths import of_rate
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.report.explore import explore_page
from evict_profile.report.numbers import spread
from evict_profile.served.step import ServedStep
from evict_profile.table import CostTable
from tests.command import evict

NODE = shutil.which("node")
RUN = Path(__file__).with_name("page.js")


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


def texts_of(page, **choice):
    """What the script writes into the page, by id."""
    words = [NODE, RUN, f"#{urlencode(choice)}"]
    done = subprocess.run(words, input=page, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


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


def test_an_estimated_step_is_that_by_which_advice_judges(composed_path):
    table = CostTable.load(composed_path)
    advisor = Advisor.of(table, of_rate(0.8))
    [shown] = data_of(explore_page([table]))["tables"]
    assert shown["estimated"] and not shown["flags"]
    for batch in table.axes.batch:
        [ratios] = [e["ratios"] for e in shown["batches"] if e["batch"] == batch]
        advised = [way.ratio for way in advisor.at(batch).ways]
        ends = [(ratio.value, ratio.low, ratio.high) for ratio in advised]
        assert ratios == [pytest.approx(each, rel=1e-5) for each in ends]


@pytest.mark.skipif(not NODE, reason="no node is on PATH to run the page's script")
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.7065, 0.995])
def test_the_page_of_an_estimate_answers_as_the_command_that_it_prints(
    composed_path, rate, tmp_path
):
    said = texts_of(explore_page([CostTable.load(composed_path)]), accept=rate, batch=4)
    command = shlex.split(said["command"])
    done = evict(*command[1:], folder=tmp_path)
    assert command[:4] == ["evict-profile", "advise", str(composed_path), "--accept"]
    advice = decide(CostTable.load(composed_path), command[4], batch=[4])
    [way] = stated_ways(advice.advisor, 4)
    even = way.break_even
    assert said["answer"] == (
        "Estimated, not measured: K = 3 pays where a step commits more than "
        f"{even.value:.2f} tokens (95 %: {even.low:.2f} to {even.high:.2f})"
    )
    sentence = f"Yours commits {way.committed:.2f}: {way.verdict}."
    assert said["why"].startswith(sentence)
    assert sentence in " ".join(done.stdout.split())
    assert f"<td>{spread(even)}</td>" in said["tbody"]
    assert f"<title>K = 3: {spread(even)}</title>" in said["plot"]


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

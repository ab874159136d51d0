"""The whole study, its page, and the command that writes both."""

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from evict_profile.budgets.load import load_budgets
from evict_profile.budgets.schema import NONE, ORACLE, RULES
from evict_profile.budgets.study import SCHEMA, Bounds, study
from evict_profile.errors import TraceError
from evict_profile.records import replace as changed
from evict_profile.report.budgets_page import LOOKS, page, show_study
from evict_profile.table import CostTable
from tests.budgets.synthetic import ABOUT, both, setting, table_of, typical, write
from tests.command import evict, refused
from tests.report.pages import check_page


@pytest.fixture(scope="session")
def studied(recording_file, table_file):
    """The whole front, with nothing asked."""
    return study([recording_file], table_file)


@pytest.fixture(scope="session")
def text(studied):
    return page(studied)


def test_a_table_of_another_model_is_refused(table_file, tmp_path):
    """Its experts are not those that were activated."""
    plain = setting(NONE)
    other = table_of(both(plain), [plain], changed(ABOUT, top_k=2))
    path = write(tmp_path / "other.parquet", other)
    with pytest.raises(TraceError, match=r"top-2 \(tiny\), and the table prices .*-4"):
        study([path], table_file)


def test_numbers_are_json(studied):
    """Every setting of every workload."""
    found = json.loads(studied.as_json())
    assert found["schema"] == SCHEMA
    points = found["parts"][0]["front"]["points"]
    assert len(points) == len(studied.whole.front.points)
    assert points[1]["speedup"]["low"] <= points[1]["speedup"]["value"]
    assert found["parts"][0]["advice"]["required"]["agreement"] == 0.98


def test_the_interval_of_prices_is_of_the_steps_recorded(
    studied, recording_file, table_file
):
    """At their context and sizes; what a drift watch allows for is not in it."""
    steps = load_budgets(recording_file).steps
    price = CostTable.load(table_file).price(1, steps["context"].median(), "clamp")
    tokens = steps["verified"].to_numpy()
    high = np.median(price.high_us[tokens] / price.step_cost_us[tokens])
    assert studied.price_interval[1] == pytest.approx(high)


def test_few_prompts_have_unbounded_intervals(table_file, tmp_path):
    """JSON knows no infinity; what is missing is said."""
    path = write(tmp_path / "few.parquet", typical(prompts=2, workloads=("code",)))
    found = json.loads(study([path], table_file).as_json())
    speed = found["parts"][0]["front"]["points"][1]["tokens_per_s"]
    assert speed["low"] is speed["high"] is None
    assert found["unseen"] is None
    assert "2 prompts are too few to tell" in found["caveats"][-1]


def test_the_page_is_whole_and_says_every_setting(text, studied):
    """Every section, a drawing a front, no address but of the SVG's own names."""
    check_page(text)
    assert text.count("<svg") == len(studied.parts)
    assert studied.whole.advice.message in text
    for point in studied.whole.front.points:
        assert f"<td>{point.setting.name}</td>" in text


def test_names_are_escaped(studied):
    """A workload is named by whoever recorded it."""
    whole = studied.whole
    odd = replace(whole, front=replace(whole.front, workload="<b>&code"))
    text = page(replace(studied, parts=(odd,)))
    assert "<b>&code" not in text
    assert "&lt;b&gt;&amp;code" in text


@pytest.mark.parametrize("rules", [(), (ORACLE,)])
def test_a_recording_of_few_rules_has_a_page(rules, table_file, tmp_path):
    """Also one without any budget that could be deployed."""
    settings = [setting(NONE), *(setting(rule, 8) for rule in rules)]
    found = [row for each in settings for row in both(each, kl=0.01)]
    path = write(tmp_path / "few.parquet", table_of(found, settings))
    assert page(study([path], table_file)).count("<svg") == 1


def test_every_rule_has_a_look_of_its_own():
    assert set(LOOKS) == set(RULES) - {NONE}
    assert len(set(LOOKS.values())) == len(LOOKS)


def test_a_terminal_has_a_line_a_setting(studied, capsys):
    """Small budgets first, and what is advised of each workload."""
    show_study(Console(), studied)
    lines = capsys.readouterr().out.splitlines()
    mass = [line.split()[1] for line in lines if line.strip().startswith("mass ")]
    assert mass == ["8", "16", "24"]
    assert f"code: {studied.parts[1].advice.message}" in lines


def test_command_writes_page_and_numbers(recording_file, table_file, tmp_path):
    """Of one workload, with a quality that some budget keeps."""
    done = evict(
        "budget", recording_file, "--table", table_file, "--kl", 0.07, "--accept", 0.9,
        "--workload", "prose", "--out", "page.html", "--json", "numbers.json",
        folder=tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0
    assert "LOSSY" in done.stdout
    assert str(Bounds(kl=0.07, accept=0.9)) in done.stdout
    assert "report: page.html" in done.stdout
    assert "numbers: numbers.json" in done.stdout
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 1
    assert 'id="workloads"' not in text
    (part,) = json.loads((tmp_path / "numbers.json").read_text())["parts"]
    assert part["front"]["workload"] == "prose"
    assert part["advice"]["choice"] == "take the budget"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workload", "poems"), "it holds code, prose"),
        (("--agreement", "98"), "--agreement 98 cannot be"),
        (("--json", "."), "is a folder"),
    ],
)
def test_mistakes_are_one_sentence(recording_file, table_file, tmp_path, words, says):
    command = ("budget", recording_file, "--table", table_file, *words)
    assert says in refused(*command, folder=tmp_path)


def test_what_the_command_reads_is_neither_written_over_nor_mistaken(
    recording_file, table_file, tmp_path
):
    """The table's samples are among it, though nobody named them."""
    samples = table_file.with_suffix(".parquet")
    words = ("budget", recording_file, "--table", table_file, "--out", samples)
    says = refused(*words, folder=tmp_path)
    assert "1.0.0.parquet, which this command reads" in says
    assert not samples.exists()
    words = ("budget", table_file, "--table", table_file)
    assert "is no whole Parquet file" in refused(*words, folder=tmp_path)

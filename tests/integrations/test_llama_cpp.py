"""Flags of llama-server: what a table and an acceptance say, and costs of batches."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from evict_profile.advice.acceptance import of_positions, of_rate, of_text
from evict_profile.errors import ConfigError
from evict_profile.integrations.exporters import ExportOptions
from evict_profile.integrations.exporters.llama_cpp import llama_cpp
from evict_profile.records import replace
from evict_profile.table import CostTable, Staircase
from tests.command import evict, refused
from tests.traces.synthetic import Plan, write_trace


@pytest.fixture
def table(saved_table: Path) -> CostTable:
    """The known run's, with round prices for one request."""
    steps = tuple(100.0 + 10.0 * max(0, n - 1) for n in range(9))
    stairs = Staircase(1, 64, steps, steps, steps)
    return replace(CostTable.load(saved_table), staircases=(stairs,))


def options(acceptance: str, level_ms: float = 0.0) -> ExportOptions:
    return ExportOptions(lengths=of_positions(acceptance), level_ms=level_ms)


def test_the_best_length_is_advised(table: CostTable) -> None:
    """1.5 tokens of 110 us, 1.55 of 120: one draft, 1.36 times plain decoding."""
    made = llama_cpp(table, options("0.5,0.05"))
    assert made.command.endswith("--spec-type TYPE --spec-draft-n-max 1")
    assert made.fields["speed"]["value"] == pytest.approx(1.5 * 100 / 110)
    assert "Advised: 1.36" in " ".join(made.notes)


def test_where_drafts_cost_more_than_they_bring_speculation_is_off(
    table: CostTable,
) -> None:
    """The line still says how to see it."""
    made = llama_cpp(table, options("0.2,0.05", level_ms=0.05))
    assert made.command == "llama-server -m MODEL   # leave speculation off"
    assert made.fields["n_max"] == 0
    assert "--spec-synth-rates 0.2,0.05" in " ".join(made.notes)


def test_the_line_to_check_by_has_the_shares_that_were_told(table: CostTable) -> None:
    """As many as are drafted, in llama-server's own form."""
    told = " ".join(llama_cpp(table, options("0.9,0.8,0.7")).notes)
    assert "--spec-draft-n-max 3 " in told
    assert "--spec-synth-rates 0.9,0.8,0.7" in told


def test_costs_of_batches_are_relative_to_one_token(table: CostTable) -> None:
    """T(2) / 2 T(1) = 110 / 200."""
    made = llama_cpp(table, ExportOptions())
    assert made.fields["batch_costs"][:3] == (1.0, 0.55, 0.4)
    assert "GGML_BATCH_COSTS=1,0.55,0.4," in " ".join(made.notes)
    assert not made.command


def test_a_rate_is_an_acceptance_too(table: CostTable) -> None:
    """Longer than the table prices: the longest priced chain is the end."""
    made = llama_cpp(table, ExportOptions(lengths=of_rate(0.99), level_ms=0.0))
    assert made.fields["n_max"] == 7


@pytest.mark.parametrize("text", ["0.5,0.6", "1.2", "-0.1", "x", "0.5,nan", ""])
def test_shares_that_cannot_be_are_refused(text: str) -> None:
    """A later draft is accepted only where those before it were."""
    with pytest.raises(ConfigError, match=r"as in 0\.8,0\.65,0\.5"):
        of_positions(text)


def test_shares_are_means_by_position() -> None:
    """One token of the target's own, and the shares added up."""
    assert of_positions("0.8,0.65,0.5").committed.tolist() == pytest.approx(
        [1.0, 1.8, 2.45, 2.95]
    )


def test_the_command_replays_the_rules_on_a_trace(
    saved_table: Path, tmp_path: Path
) -> None:
    """Each rule with its flags and its speed, and the file holds them."""
    trace = tmp_path / "trace.parquet"
    write_trace(trace, Plan())
    words = ("--format", "llama-cpp", "--trace", trace, "--draft-level-ms", 0.001)
    done = evict("export", saved_table, *words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    names = [
        "default",
        "best n-max",
        "best n-max with p-min",
        "one token's experts",
        "PR 17034",
    ]
    for name in names:
        line = rf"^{name} \(.+\): [\d.]+.* of plain decoding\.$"
        assert re.search(line, done.stdout, re.MULTILINE), done.stdout
    content = json.loads((tmp_path / "llama-cpp.json").read_text(encoding="utf-8"))
    assert list(content["rules"]) == names
    assert np.isfinite(content["speed"]["value"])


def test_a_trace_of_one_prompt_is_refused(saved_table: Path, tmp_path: Path) -> None:
    """Rules are scored on other prompts than they are tuned on."""
    trace = write_trace(tmp_path / "t.parquet", Plan(prompts=1, workloads=("code",)))
    words = ("export", saved_table, "--format", "llama-cpp", "--trace", trace)
    assert "holds one prompt" in refused(*words, folder=tmp_path)


def test_intervals_of_few_prompts_are_null_in_the_file(
    saved_table: Path, tmp_path: Path
) -> None:
    """JSON has no infinity."""
    trace = write_trace(tmp_path / "t.parquet", Plan(prompts=1))
    words = ("--format", "llama-cpp", "--trace", trace, "--draft-level-ms", 0.001)
    evict("export", saved_table, *words, folder=tmp_path)
    text = (tmp_path / "llama-cpp.json").read_text(encoding="utf-8")
    assert json.loads(text)["rules"]["default"]["speed"]["high"] is None
    assert "Infinity" not in text


def test_shares_that_no_server_can_accept_are_not_told(table: CostTable) -> None:
    """Lengths measured apart may fall, or rise by more than before."""
    for lengths in ("1.5,1.4,2.5", "1.2,2.1"):
        made = llama_cpp(table, ExportOptions(lengths=of_text(lengths), level_ms=0.0))
        assert "--spec-synth-rates" not in " ".join(made.notes)


def test_the_drafts_own_table_prices_drafting(
    saved_table: Path, tmp_path: Path
) -> None:
    """What drafts as dearly as it verifies never pays."""
    table, path = CostTable.load(saved_table), tmp_path / "llama.json"
    made = replace(table.provenance, new_graph_us=0.0)
    key = replace(table.key, engine="llama_cpp")
    replace(table, key=key, provenance=made).save(path)
    words = ("export", path, "--format", "llama-cpp", "--acceptance", "0.99,0.98")
    assert "n-max 2" in evict(*words, "--draft-level-ms", 0, folder=tmp_path).stdout
    done = evict(*words, "--draft-table", path, folder=tmp_path)
    assert "Drafting: forwards of tiny, by its own table." in done.stdout
    assert "leave speculation off" in done.stdout
    both = ("--draft-table", path, "--draft-level-ms", 1)
    assert "not both" in refused(*words, *both, folder=tmp_path)


def test_two_forms_of_acceptance_are_refused(saved_table: Path, tmp_path: Path) -> None:
    words = ("--format", "llama-cpp", "--acceptance", "0.5", "--rate", 0.5)
    assert "one form" in refused("export", saved_table, *words, folder=tmp_path)

"""Each engine reads the draft length of every batch as it was chosen."""

import json
import re
import shlex

import pytest

from evict_profile.advice.acceptance import acceptance_of
from evict_profile.advice.advise import Gain
from evict_profile.advice.answer import Answer
from evict_profile.advice.capture import FLAGS
from evict_profile.advice.decide import decide
from evict_profile.advice.drafting import drafters
from evict_profile.advice.plan import DraftPlan, Range
from evict_profile.errors import ConfigError, DataError
from evict_profile.integrations.exporters import ENGINES, write_advice
from evict_profile.integrations.exporters.schedules import llama_cpp
from evict_profile.records import replace
from evict_profile.stats import Estimate
from evict_profile.table import CostTable
from evict_profile.table.store import save_next
from tests.advice.served import served_table
from tests.command import evict, refused
from tests.exported import (
    READERS,
    advisor_of,
    write_schedule,
)


@pytest.fixture(scope="module")
def table(composed_path):
    return CostTable.load(composed_path)


@pytest.mark.parametrize("name", READERS)
def test_every_batch_drafts_what_was_chosen(table, tmp_path, name):
    written = write_schedule(table, name, tmp_path / "s", 5, 2, 4)
    beyond = 0 if name == "trtllm" else 4
    for batch, drafts in (written.chosen | {10_000: beyond}).items():
        assert READERS[name](written.content, batch) == drafts
    assert str(written.path) in written.made.command or name == "vllm"
    assert any("batch 12" in note for note in written.made.notes)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_plain_decoding_is_a_length_of_a_schedule(table, tmp_path, name):
    written = write_schedule(table, name, tmp_path / "s", 5, 0)
    for batch, drafts in (written.chosen | {10_000: 0}).items():
        assert READERS[name](written.content, batch) == drafts
    assert any(
        "beyond it" in note and "drafts nothing" in note for note in written.made.notes
    )


def test_one_length_is_no_schedule(table, tmp_path):
    for name in ("vllm", "trtllm"):
        text = json.dumps(write_schedule(table, name, tmp_path / name, 3).content)
        assert "per_batch_size" not in text and "draft_len_schedule" not in text
    command = write_schedule(table, "sglang", tmp_path / "s", 3).made.command
    assert "--speculative-num-steps 3 --speculative-num-draft-tokens 4" in command
    assert "adaptive" not in command


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("vllm", "--tensor-parallel-size 4 "),
        ("sglang", "--tp-size 4 "),
        ("trtllm", "--tp_size 4 "),
    ],
)
def test_a_command_runs_on_as_many_gpus_as_the_table_has(table, tmp_path, name, flag):
    own = replace(table, key=replace(table.key, tp=4))
    for drafts in ((3,), (5, 2)):
        assert flag in write_schedule(own, name, tmp_path / "s", *drafts).made.command


@pytest.mark.parametrize("name", ENGINES)
def test_a_model_with_mtp_layers_drafts_with_them(table, tmp_path, name):
    own = replace(table, model=replace(table.model, mtp_layers=1))
    for model, has in ((own, True), (table, False)):
        written = write_schedule(model, name, tmp_path / "s", 3)
        said = written.made.command + json.dumps(written.content)
        spoken = re.search(r'"mtp"|NEXTN|"MTP"|draft-mtp', said)
        assert bool(spoken) == has
        assert ("DRAFTER" in said) == (not has)


def test_drafts_that_vllm_refuses_of_several_mtp_layers_are_named(table, tmp_path):
    own = replace(table, model=replace(table.model, mtp_layers=3))
    for drafts, is_refused in ((2, False), (3, False), (4, True), (6, False)):
        notes = write_schedule(own, "vllm", tmp_path / "s", drafts).made.notes
        assert any("vLLM refuses 4 drafts" in note for note in notes) == is_refused


@pytest.mark.parametrize("drafts", [(3,), (5, 2)])
def test_vllms_command_holds_the_whole_config(table, tmp_path, drafts):
    written = write_schedule(table, "vllm", tmp_path / "s.json", *drafts)
    config, fields = json.loads(shlex.split(written.made.command)[-1]), written.content
    del fields["evict_profile"]
    assert fields.items() <= config.items()
    assert config["num_speculative_tokens"] == max(drafts)


def test_trtllm_begins_with_its_longest_draft(table, tmp_path):
    content = write_schedule(table, "trtllm", tmp_path / "s.yaml", 5, 2).content
    config = content["speculative_config"]
    lengths = config["draft_len_schedule"]
    assert list(content) == ["speculative_config"]
    assert lengths[min(lengths)] == config["max_draft_len"] == max(lengths.values())
    assert all(type(key) is int for key in lengths)


def plan_of(drafts, value):
    gain = Gain(drafts, Estimate(value, 0.9 * value, 1.1 * value), "table")
    return DraftPlan({1: 1.0}, gain)


def test_no_file_is_written_where_drafting_does_not_pay(table, tmp_path):
    answer = Answer(advisor_of(table), plan_of(1, 0.8))
    with pytest.raises(DataError, match="plain decoding needs no file"):
        write_advice(answer, "vllm", tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_an_estimate_is_no_schedule(composed_path, tmp_path):
    words = ("export", composed_path, "--for", "vllm", "--accept", "3:2.4")
    said = refused(*words, "--out", tmp_path / "x", folder=tmp_path)
    assert "is estimated, and says which K pays but not which is best" in said
    assert not list(tmp_path.iterdir())


class TestOfAServer:
    """A table whose runs name no engine, and whose drafter nobody stated."""

    @pytest.fixture
    def place(self, tmp_path):
        rows = [(1, 0, 8.0), (1, 3, 12.0), (8, 0, 10.0), (8, 3, 22.0)]
        served_table(*rows).save(tmp_path / "1.0.0.json")
        return tmp_path

    @pytest.mark.parametrize("name", ENGINES)
    def test_notes_contradict_nothing(self, place, name):
        words = ("export", "1.0.0.json", "--for", name, "--accept", "3:2.4")
        done = evict(*words, folder=place)
        assert done.exit_code == 0, done.output
        said = " ".join(done.stdout.split())
        for false in ("not stated", "not of", "tp 1", "-size", "tp_size"):
            assert false not in said
        assert "eagle" not in said.lower().replace("speculative-eagle-topk", "")
        assert "Nothing checks that what serves is gpt-oss-20b on RTX 4090" in said


def test_one_length_of_sglang_is_flags_alone_and_loses_where_that_is_said(tmp_path):
    """SGLang changes no length of a draft model, whose K = 3 loses at batch 8."""
    runs = ((1, 0, 8.0), (1, 3, 9.0), (8, 0, 10.0), (8, 3, 27.0))
    path = save_next(served_table(*runs, engine="sglang"), tmp_path / "in")[1]
    words = ("export", path, "--accept", "3:2.4", "--for", "sglang")
    asked = ("--drafter", "draft_model", "--out", "flags.json")
    said = evict(*words, *asked, folder=tmp_path).stdout
    assert "K = 3 is slower than plain decoding at batch 8 (0.89 times)." in said
    assert "no file is written" in said and "--speculative-num-steps 3" in said
    assert "flags.json" not in said and not (tmp_path / "flags.json").exists()


def test_another_engines_table_is_marked(table, tmp_path):
    own = write_schedule(table, "sglang", tmp_path / "a", 3).made
    other = write_schedule(table, "vllm", tmp_path / "b", 3).made
    assert not any("not of sglang" in note for note in own.notes)
    assert any("not of vllm" in note for note in other.notes)


@pytest.mark.parametrize("name", ENGINES)
def test_the_graphs_of_a_schedule_are_noted_for_engines_that_have_a_flag(
    table, tmp_path, name
):
    axes = replace(table.axes, capture_sizes=(1, 4, 16))
    made = write_schedule(replace(table, axes=axes), name, tmp_path / "s", 3).made
    flags = [flag for flag in FLAGS.values() if flag in " ".join(made.notes)]
    assert flags == ([FLAGS[name]] if name in FLAGS else [])


def test_llama_cpp_has_one_length(saved_table, tmp_path):
    words = ("export", saved_table, "--accept", "0.9,0.8,0.7", "--for", "llama-cpp")
    done = evict(*words, "--draft-level-ms", 0, folder=tmp_path)
    flags = "-md DRAFTER --spec-type draft-eagle3 --spec-draft-n-max 3\n"
    assert done.stdout.endswith(flags)
    assert "One length for at most " in done.stdout


def test_llama_cpp_has_the_length_of_its_traffic(tmp_path):
    """Drafting pays at one request, and not at four."""
    runs = ((1, 0, 10.0), (1, 4, 14.0), (4, 0, 20.0), (4, 4, 60.0))
    path = save_next(served_table(*runs, engine="llama.cpp"), tmp_path)[1]
    words = ("export", path, "--accept", "4:2.3", "--for", "llama-cpp", "--traffic")
    assert "--spec-draft-n-max" in evict(*words, "1:1", folder=tmp_path).stdout
    assert "plain decoding needs no file" in refused(*words, "4:1", folder=tmp_path)


@pytest.mark.parametrize(
    ("accept", "rates"), [("0.9,0.8,0.7", "0.9,0.8"), ("1.2,2.1", "")]
)
def test_the_line_to_check_by_has_the_shares_that_were_told(table, accept, rates):
    [lengths] = acceptance_of(accept)
    made = llama_cpp((Range(1, 1, 2),), advisor_of(table, lengths))
    assert " ".join(made.notes).endswith(f"--spec-synth-rates {rates}" if rates else "")
    assert len(made.notes) == 1 + bool(rates)


NAMED = [
    ("vllm", "draft_model", '{"method": "draft_model", "model": "DRAFTER", '),
    ("vllm", "pard", '"parallel_drafting": true, "num_speculative_tokens": 3}'),
    ("vllm", "dflash", '{"method": "dflash", "model": "DRAFTER", '),
    ("vllm", "mtp_head", '{"method": "mtp", "model": "DRAFTER", '),
    ("sglang", "draft_model", "STANDALONE --speculative-draft-model-path DRAFTER "),
    ("sglang", "dflash", "DFLASH --speculative-draft-model-path DRAFTER --spec"),
    ("sglang", "mtp_head", "NEXTN --speculative-draft-model-path DRAFTER --spec"),
    ("trtllm", "draft_model", "decoding_type: DraftTarget"),
    ("trtllm", "pard", "decoding_type: PARD"),
    ("trtllm", "dflash", "decoding_type: DFlash"),
    ("llama-cpp", "draft_model", "-md DRAFTER --spec-type draft-simple "),
    ("llama-cpp", "dflash", "-md DRAFTER --spec-type draft-dflash "),
]


@pytest.mark.parametrize(("name", "kind", "says"), NAMED)
def test_an_engine_is_told_the_drafter_of_the_advice(table, tmp_path, name, kind, says):
    answer = Answer(advisor_of(table, drafter=kind), plan_of(3, 2.0))
    made = write_advice(answer, name, tmp_path / "s")
    said = made.command + ((tmp_path / "s").read_text() if made.fields else "")
    assert says in said
    assert "eagle3" not in made.command.lower()


@pytest.mark.parametrize("name", ["sglang", "llama-cpp"])
def test_an_engine_that_runs_no_such_drafter_is_named(table, tmp_path, name):
    answer = Answer(advisor_of(table, drafter="pard"), plan_of(3, 2.0))
    with pytest.raises(ConfigError, match=f"{name} runs none; choose from eagle3, mtp"):
        write_advice(answer, name, tmp_path / "s")


def test_drafters_are_those_of_the_engines():
    for row in drafters().values():
        assert row["schedules"] and {*row["schedules"]} <= {*row} <= {
            *ENGINES,
            "schedules",
        }


@pytest.mark.parametrize(("drafter", "ranges"), [("eagle3", 2), ("draft_model", 0)])
def test_sglang_changes_the_length_of_some_drafters_alone(drafter, ranges):
    """K = 3 gains a half at batch 1, and loses as much at batch 8."""
    rows = [(1, 0, 8.0), (1, 3, 10.0), (8, 0, 10.0), (8, 3, 40.0)]
    served = served_table(*rows, engine="sglang")
    found = decide(served, "3:1.9", drafter=drafter)
    assert len(found.plan.advised) == ranges

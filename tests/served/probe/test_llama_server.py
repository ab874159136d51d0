"""A real llama-server, whose own drafts and counts are probed."""

import re
from pathlib import Path

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor
from evict_profile.advice.plan import Range
from evict_profile.integrations.exporters.schedules import llama_cpp
from evict_profile.records import replace
from evict_profile.served.probe.record import read_probe
from evict_profile.table import CostTable
from tests.command import evict

xllamacpp = pytest.importorskip("xllamacpp")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    pytest.importorskip("gguf")
    from examples.small_world.export_gguf import write_world

    path = tmp_path_factory.mktemp("gguf") / "world.gguf"
    write_world(Path("examples/small_world/stdlib"), path, 0, 0, "F32")
    return str(path)


REMOVED = {"--draft", "--draft-n", "--draft-max", "--draft-n-min", "--draft-min"}
"""Flags that the library still holds, to say by what they were replaced."""
CALL = re.compile(r"(?:llama-server|-md )(?:\\\n|[^`\n])*|--spec-[a-z-]+")
WORD = re.compile(r"(?<=\s)--?[a-z][a-z-]*|(?<=--spec-type )[a-z0-9-]+")


def check_known(calls):
    """The flags of these calls, and the types that they draft by, are the library's."""
    [library] = Path(xllamacpp.__file__).parent.glob("*.so")
    known = library.read_bytes()
    words = {*WORD.findall(f" {calls}")}
    for word in words:
        assert word not in REMOVED and b"\0%b\0" % word.encode() in known, word
    return words


def test_the_flags_of_the_pages_are_the_librarys():
    """Of every llama-server command, of what is added to make it draft, and alone."""
    found = (*Path("docs").rglob("*.md"), Path("examples/llama_cpp/README.md"))
    pages = "".join(page.read_text() for page in found)
    words = check_known(" ".join(CALL.findall(pages)))
    assert {"-md", "--metrics", "--spec-draft-n-max", "draft-simple"} <= words
    assert "--spec-synth-rates" in words


@pytest.mark.parametrize(
    ("drafter", "heads", "named"),
    [
        (None, 0, "draft-eagle3"),
        (None, 1, "draft-mtp"),
        ("draft_model", 0, "draft-simple"),
        ("dflash", 0, "draft-dflash"),
    ],
)
def test_the_flags_of_an_exported_command_are_the_librarys(
    saved_table, drafter, heads, named
):
    table = CostTable.load(saved_table)
    table = replace(table, model=replace(table.model, mtp_layers=heads))
    advisor = Advisor.of(table, of_rate(0.8), level_ms=1.0, drafter=drafter)
    made = llama_cpp((Range(1, 1, 3),), advisor)
    words = check_known(" ".join((made.command, *made.notes)))
    assert {"--spec-draft-n-max", "--spec-synth-rates", named} <= words


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [0, 2])
def test_its_steps_and_accepted_tokens_are_found(world, drafts, tmp_path):
    """Nothing is judged by a clock: the machine may be busy."""
    from tests.served.probe.llama_servers import Setting, params_of

    params = params_of(Setting(world, world if drafts else "", drafts))
    params.port, params.endpoint_metrics, params.n_parallel = 0, True, 2
    server = xllamacpp.Server(params)
    words = ("--raw", "--batch", "1,2", "--minutes", "0.02", "--out", "runs.jsonl")
    done = evict("probe", server.listening_address, *words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    [(probed, waves)] = read_probe(tmp_path / "runs.jsonl")
    assert (probed.server.engine, probed.server.drafts) == ("llama.cpp", drafts)
    assert {wave.batch for wave in waves} == {1, 2}
    assert all(wave.tokens_per_s > 0.0 for wave in waves)
    # The model drafts for itself, so that all is accepted.
    accepted = [wave.accepted or 1.0 for wave in waves]
    assert accepted == pytest.approx([drafts + 1] * len(waves), rel=0.05)

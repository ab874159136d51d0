"""The command import: from a file of runs to a table that answers."""

import json

import pytest

from evict_profile.records import replace
from evict_profile.served.probe.record import Probed, Wave, append, resume
from evict_profile.served.probe.server import ServerInfo
from evict_profile.served.table import ServedTable
from tests.command import evict, refused

NAMES = ("--model", "m", "--gpu", "g")
CSV = "batch,K,tok/s,accepted\n4,0,400,\n4,3,700,2.8\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "runs.csv").write_text(CSV)
    return tmp_path


def imported(folder, *words, text=None):
    if text:
        (folder / "runs.csv").write_text(text)
    done = evict("import", "runs.csv", *NAMES, *words, folder=folder)
    assert done.exit_code == 0, done.output
    return done.stdout


def table_of(folder):
    [path] = folder.rglob("*.json")
    return ServedTable.load(path)


def test_it_prints_settings_findings_the_table_and_what_comes_next(folder):
    said = imported(folder)
    lines = said.splitlines()
    [row] = [line for line in lines if line.startswith("K = 3 at batch 4")]
    assert row.split()[6:] == [
        "1",
        "16.0",
        "(14.5..17.6)",
        "1.60",
        "(1.39..1.84)",
        "2.80",
        "1.75",
    ]
    assert "2 of 2 settings ran once" in said
    assert "Not known from these runs: the text, the temperature" in said
    assert "note: no run states its tensor-parallel size, and 1 is assumed" in said
    path = "cost_tables/g/m/not-stated-served/1.0.0.json"
    assert f"table: {path}" in lines
    assert lines[-1] == f"next: evict-profile advise {path}"


def test_no_next_step_is_named_where_no_length_is_known(folder):
    """Steps of vllm-mlx on an M5 Max, as issue 699 of that project has them."""
    said = imported(folder, text="batch,K,step ms\n1,0,8.47\n1,1,13.49\n1,4,20.67\n")
    assert "not stated" in said and "next:" not in said


@pytest.mark.parametrize(("width", "ratio"), [(4, 2.0), (1, 1.0)])
@pytest.mark.parametrize(
    "steps",
    ["4,0,10\n4,3,20\n64,0,10\n64,3,20\n", "1,0,10\n1,3,20\n16,0,20\n16,3,40\n"],
)
def test_steps_of_one_ratio_have_it_at_a_batch_between(folder, steps, width, ratio):
    imported(folder, text=f"batch,K,step ms\n{steps}")
    assert table_of(folder).ratio(8, width, width - 1).value.value == pytest.approx(
        ratio
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("batch,K,step ms\n", "runs.csv: holds no run"),
        ("batch,K,step ms\n1,0,10\n1,3,5\n", "less than the plain step of 10.00 ms"),
        ("batch,K,step ms,tp\n1,0,5,4\n1,3,9,8\n", "tp: 4 first, 8 then"),
        ("batch,K,step ms\n1,0,5\n2,3,9\n", "no batch has two settings"),
        ("batch,K,step ms,accepted\n1,0,8,\n1,3,16,0.62\n", "is a rate"),
    ],
)
def test_runs_that_cannot_be_are_refused_and_leave_nothing(folder, text, says):
    (folder / "runs.csv").write_text(text)
    assert says in refused("import", "runs.csv", *NAMES, folder=folder)
    assert not (folder / "cost_tables").exists()


def test_findings_are_said_where_no_table_can_be_made(folder):
    """A log of a queue alone is no all-clear."""
    (folder / "runs.csv").write_text("batch,K,step ms,waiting\n9,3,20,56\n")
    done = evict("import", "runs.csv", *NAMES, folder=folder)
    assert done.exit_code == 2
    assert "56 requests waited while 9 ran" in done.stdout
    assert "no batch has two settings" in done.stderr


def test_contexts_are_rows_of_their_own(folder):
    text = "batch,K,step ms,context\n1,0,10,512\n1,3,15,512\n1,0,20,8192\n1,3,50,8192\n"
    said = imported(folder, text=text)
    rows = [line.split() for line in said.splitlines() if line.startswith("K = 3")]
    assert [(row[6], row[10]) for row in rows] == [("512", "1.50"), ("8192", "2.50")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs.csv=x"], "runs.csv=x: K must be a whole number, as runs.csv=3"),
        (["runs.csv=-1"], "K must be a whole number"),
        (["runs.csv", "runs.csv"], "is named twice"),
        (["none.csv"], "none.csv"),
    ],
)
def test_words_that_name_no_runs_are_refused(folder, words, says):
    assert says in refused("import", *words, *NAMES, folder=folder)


def test_all_files_that_are_refused_are_named(folder):
    for name in ("a.log", "b.log"):
        (folder / name).write_text("eval time = 400.0 ms / 41 runs\n")
    said = refused("import", "a.log", "runs.csv", "b.log", *NAMES, folder=folder)
    assert "a.log: does not state K" in said and "also refused: b.log" in said


def test_files_that_state_a_server_and_none_make_a_table_that_advises(folder):
    text = "batch,K,tok/s,accepted,engine\n4,5,700,3.0,llama.cpp\n"
    (folder / "more.csv").write_text(text)
    assert "llama.cpp-served" in imported(folder, "more.csv")
    [path] = folder.rglob("*.json")
    assert evict("advise", path, folder=folder).exit_code == 0


def test_a_file_whose_name_has_an_equals_sign_is_a_file(folder):
    (folder / "tp=8.csv").write_text(CSV)
    assert evict("import", "tp=8.csv", *NAMES, folder=folder).exit_code == 0


def test_the_same_runs_make_no_version(folder):
    imported(folder)
    said = imported(folder, text=CSV + "\n")
    assert "nothing new: cost_tables/g/m/not-stated-served/1.0.0.json has these" in said
    assert table_of(folder).version == "1.0.0"


def test_other_runs_make_the_next_version_and_name_what_differs(folder):
    imported(folder)
    said = imported(folder, text=CSV.replace("2.8", "2.0"))
    assert "1.0.0.json has other runs of this server (" in said
    assert "K = 3 at batch 4: 2.80 accepted before, 2.00 after (-29%)" in said
    assert "by name reads 1.0.1.json" in said and "FILE=K:TEXT" in said
    assert "has these runs, and 1.0.1.json is newer" in imported(folder, text=CSV)


def test_the_same_runs_with_a_shape_are_said_to_have_another(folder, saved_table):
    imported(folder)
    said = imported(folder, "--shape", saved_table)
    assert "1.0.0.json has another --shape; it stays" in " ".join(said.split())


def test_an_earlier_table_keeps_its_runs_beside_new_ones(folder):
    """Also where the file that it was made of has grown and is named again."""
    imported(folder)
    earlier = "cost_tables/g/m/not-stated-served/1.0.0.json"
    (folder / "more.csv").write_text("batch,K,tok/s,accepted\n4,5,650,3.1\n")
    (folder / "runs.csv").write_text(f"{CSV}8,0,700,\n")
    said = imported(folder, earlier, "more.csv")
    assert "K = 5 at batch 4: only after" in said and "only before" not in said
    assert "For all runs in one table" not in said
    table = ServedTable.load(folder / earlier.replace("1.0.0", "1.0.1"))
    ran = [(run.batch, run.drafts) for run in table.runs]
    assert sorted(ran) == [(4, 0), (4, 3), (4, 5), (8, 0)]
    assert "the file without =K" in refused(
        "import", f"{earlier}=3", *NAMES, folder=folder
    )


def test_another_spelling_of_a_server_makes_its_next_version(folder):
    """A second key would leave `advise` by name with two."""
    for model, gpu in (
        ("Qwen/Qwen3-30B-A3B", "NVIDIA H200"),
        ("qwen3-30b-a3b", "h200"),
    ):
        (folder / "runs.csv").write_text(CSV.replace("2.8", f"2.{len(gpu)}"))
        names = ("--model", model, "--gpu", gpu)
        said = evict("import", "runs.csv", *names, folder=folder).stdout
    assert "qwen3-30b-a3b on h200 is Qwen/Qwen3-30B-A3B on NVIDIA H200, as" in said
    paths = sorted(folder.rglob("*.json"))
    assert [path.name for path in paths] == ["1.0.0.json", "1.0.1.json"]
    for gpu in ("h200", "NVIDIA H200"):
        names = ("--model", "qwen3-30b-a3b", "--gpu", gpu)
        found = evict("advise", *names, "--json", folder=folder)
        assert json.loads(found.stdout)["table"]["path"].endswith("1.0.1.json")


def texts(folder):
    for text, length in (("code", 3.0), ("prose", 2.0)):
        rows = f"batch,K,step ms,accepted\n1,0,10,\n1,3,20,{length}\n"
        (folder / f"{text}.csv").write_text(rows)


def test_a_text_is_stated_beside_a_file(folder):
    texts(folder)
    words = ("code.csv=:code", "prose.csv=:prose")
    done = evict("import", *words, *NAMES, folder=folder)
    assert done.exit_code == 0, done.output
    assert table_of(folder).texts == ("code", "prose")
    says = refused("import", "code.csv=3:a", *NAMES, folder=folder)
    assert "states K = 0, and K = 3 was given" in says


def test_a_text_that_contradicts_the_file_is_refused(folder):
    (folder / "t.csv").write_text("batch,K,step ms,text\n1,0,10,a\n1,3,20,a\n")
    says = refused("import", "t.csv=:b", *NAMES, folder=folder)
    assert "t.csv, line 2: states the text a, and b was given" in says


def test_two_files_that_accept_as_of_two_texts_are_refused(folder):
    texts(folder)
    says = refused("import", "code.csv", "prose.csv", *NAMES, folder=folder)
    assert "code.csv and prose.csv are of two texts: with K = 3 at batch 1" in says
    assert "3.00 and 2.00 tokens a step" in says and "code.csv=3:code" in says


def test_more_files_that_accept_as_of_two_texts_are_named(folder):
    texts(folder)
    (folder / "more.csv").write_text((folder / "code.csv").read_text())
    files = [f"{name}.csv" for name in ("code", "prose", "more")]
    done = evict("import", *files, *NAMES, folder=folder)
    assert done.exit_code == 0, done.output
    assert "more.csv and prose.csv are of two texts" in done.stdout


def test_a_shape_carries_one_k_to_others(folder, saved_table):
    imported(folder, "--shape", saved_table, "--tables", "own")
    [path] = (folder / "own").rglob("*.json")
    table, bare = ServedTable.load(path), replace(ServedTable.load(path), shape=None)
    assert table.shape
    one, other = (each.ratio(4, 8, 7).value.value for each in (table, bare))
    assert one != pytest.approx(other, rel=0.01)
    assert table.ratio(4, 4, 3) == bare.ratio(4, 4, 3)
    assert "the growth" not in evict("show", path, folder=folder).stdout
    assert "growth in K: of the cost table" in evict("show", path, folder=folder).stdout


def test_it_answers_in_json(folder):
    said = json.loads(imported(folder, "--json"))
    assert said["table"].endswith("1.0.0.json")
    assert said["next"] == f"evict-profile advise {said['table']}"
    _, row = said["settings"]
    assert (row["setting"], row["context"], row["runs"]) == (
        "K = 3 at batch 4",
        None,
        1,
    )
    assert row["step_us"]["value"] == pytest.approx(16_000)
    assert row["step_us"]["low"] < 16_000 < row["step_us"]["high"]
    assert row["break_even"]["value"] == pytest.approx(1.6)
    assert row["accept_length"] == {"value": 2.8, "low": 2.8, "high": 2.8}
    assert said["findings"][0]["kind"] == "once" and "the text" in said["unknown"]


def about(drafts):
    words = ("http://a", "vllm", "0.25.1", "m")
    return ServerInfo(*words, drafts, drafts, 1, {"tp_size": 2})


def test_a_probe_without_a_wave_holds_no_run(folder):
    resume(folder / "runs.jsonl", Probed(about(0), "chat"))
    assert "holds no run" in refused("import", "runs.jsonl", *NAMES, folder=folder)


def test_a_round_whose_larger_batch_alone_was_slow_is_kept(folder):
    """The smallest batch of a round shows whether the machine was slow."""
    path = folder / "runs.jsonl"
    for drafts in (0, 3):
        resume(path, Probed(about(drafts), "chat"))
        for number in range(1, 8):
            slow = 0.8 if number == 2 else 1.0
            for batch, rate in ((1, 100.0), (4, 300.0 * slow)):
                length = 2.5 if drafts else None
                append(path, Wave(number, batch, rate, length, 512.0, 0, 0.0, 1.0))
    done = evict("import", path, *NAMES, folder=folder)
    assert done.exit_code == 0, done.output
    assert "left out" not in done.stdout
    table = ServedTable.load(next(folder.rglob("1.0.0.json")))
    assert [len(each.runs) for each in table.settings] == [7, 7, 7, 7]


def test_waves_left_out_are_said_by_reason_and_kept_in_the_table(folder):
    path = folder / "runs.jsonl"
    for drafts in (0, 3):
        resume(path, Probed(about(drafts), "chat"))
        for number in range(1, 8):
            rate = 60.0 if number == 2 else 100.0
            wave = Wave(number, 1, rate, 2.5 if drafts else None, 512.0, 0, 0.0, 1.0)
            append(path, wave)
    said = evict("import", path, *NAMES, folder=folder).stdout
    assert "left out: 2 runs: its round was slow" in said
    table = ServedTable.load(next(folder.rglob("1.0.0.json")))
    assert (len(table.runs), len(table.left_out)) == (12, 2)

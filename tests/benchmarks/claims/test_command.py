"""The command writes a CSV a study, and refuses in one sentence."""

from benchmarks.claims import __main__ as command
from benchmarks.claims.world import World


def test_the_command_writes_a_study_by_itself(tmp_path, monkeypatch, trees):
    monkeypatch.setattr(World, "load", lambda folder, temperature: trees)
    monkeypatch.setattr(command.fixed, "BATCHES", (1,))
    monkeypatch.setattr(command.fixed, "WIDTHS", (4,))
    assert command.main(["--out", str(tmp_path), "--study", "fixed"]) == 0
    [path] = tmp_path.iterdir()
    head, *rows = path.read_text().splitlines()
    assert path.name == "evict-fixed.csv"
    assert head.startswith("batch,baseline,over plain,over the tree of 32,")
    assert len(rows) == 5 and all(row.startswith("1,") for row in rows)


def test_a_recording_that_is_not_there_is_one_sentence(tmp_path, capsys):
    words = ["--recordings", str(tmp_path), "--out", str(tmp_path / "out")]
    assert command.main(words) == 2
    assert capsys.readouterr().err.startswith("error: ")

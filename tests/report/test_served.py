"""Commands that read a served table: show, report, check and diff."""

import json

import pytest

from evict_profile.report.served_page import served_page
from evict_profile.served.make import served_table
from evict_profile.served.run import Deployment, Load
from evict_profile.table.document import as_text
from tests.command import evict, refused
from tests.served.runs import clean, rows, run, saved


def save(folder, runs, model="m", gpu="H200", left_out=None):
    table = served_table(runs, left_out or {}, model, gpu)
    return saved(table, folder / "cost_tables")


@pytest.fixture
def path(tmp_path):
    return save(tmp_path, clean())


class TestShow:
    def test_a_table_says_its_settings_with_their_ratio(self, path, tmp_path):
        said = evict("show", path, folder=tmp_path).stdout
        assert said.startswith("m on H200, vllm 1, tp 1, served, version 1.0.0\n")
        [row] = [line for line in said.splitlines() if line.startswith("K = 3")]
        assert row.split()[6:] == ["1000", "3", "20.0", "2.00", "2.80", "1.40"]

    def test_it_answers_in_json(self, path, tmp_path):
        said = json.loads(evict("show", path, "--json", folder=tmp_path).stdout)
        assert said["key"]["model"] == "m"
        assert len(said["settings"]) == 2 and said["findings"] == []

    def test_runs_left_out_are_counted(self, tmp_path):
        path = save(tmp_path, clean(), left_out={"a": "others ran"})
        assert "left out: 1 run" in evict("show", path, folder=tmp_path).stdout

    def test_own_tables_are_listed_and_found_by_name(self, path, tmp_path):
        for words in ((), ("--model", "M"), ("--gpu", "h200", "--engine", "vllm")):
            said = evict("show", *words, folder=tmp_path).stdout
            assert str(path.relative_to(tmp_path)) in said
        said = evict("show", "--model", "m", "--json", folder=tmp_path).stdout
        [row] = json.loads(said)
        assert row["gpu"] == "H200" and row["K"] == "0, 3"
        assert (row["batches"], row["accepted"]) == ("1", "2.80 to 2.80")
        said = refused("show", "--model", "other", "--gpu", "h200", folder=tmp_path)
        assert "no table is of --model other" in said

    @pytest.mark.parametrize("above", [0, 1, 2, 3])
    def test_a_table_of_a_server_is_found_from_any_folder(self, path, above):
        said = evict("show", ".", folder=path.parents[above]).stdout
        assert said.startswith("served table") and path.name in said


class TestReport:
    def test_the_page_has_settings_figure_and_findings(self, path, tmp_path):
        done = evict("report", path, "--out", "page.html", folder=tmp_path)
        assert done.exit_code == 0, done.output
        page = (tmp_path / "page.html").read_text()
        assert page.count("<svg") == 1
        assert "batch 1, n = 4: 2.00, measured" in page
        assert "Nothing was found in what these runs state." in page

    def test_findings_and_unknown_facts_are_on_it(self):
        runs = [run(1, 0, load=Load(waiting=3)), run(1, 3, 20.0)]
        page = served_page(served_table(runs, {"a <b>": "why"}, "m", "g"))
        assert "3 requests waited while 1 ran" in page
        assert "Not known from these runs: the text" in page
        assert "a &lt;b&gt;" in page

    @pytest.mark.parametrize(
        "runs",
        [
            rows("1,3,20|1,5,24"),
            [run(c, k, 10.0 + k, context=64.0 * c) for c in (1, 4) for k in (0, 3)],
        ],
    )
    def test_runs_of_any_kind_have_a_page(self, runs):
        assert "<svg" in served_page(served_table(runs, {}, "m", "g"))


class TestCheck:
    def test_clean_runs_pass(self, path, tmp_path):
        done = evict("check", path, folder=tmp_path)
        assert done.exit_code == 0
        assert "schema and hash: valid" in done.stdout
        assert "Nothing was found in what these runs state." in done.stdout

    def test_a_finding_fails_and_a_remark_does_not(self, tmp_path):
        queue = [run(1, k, 10.0 + k, load=Load(waiting=3)) for k in (0, 3)]
        done = evict("check", save(tmp_path, queue), folder=tmp_path)
        assert done.exit_code == 1
        assert "3 requests waited" in done.stdout
        once = save(tmp_path, rows("1,0,10|1,3,20"), model="other")
        done = evict("check", once, folder=tmp_path)
        assert (done.exit_code, "ran once" in done.stdout) == (0, True)

    def test_a_changed_table_is_refused(self, path, tmp_path):
        path.write_text(path.read_text().replace("20000.0", "15000.0"))
        assert "does not match its sha256" in refused("check", path, folder=tmp_path)

    def test_there_are_no_cells_to_measure_again(self, path, tmp_path):
        says = refused("check", path, "--recheck", folder=tmp_path)
        assert "has no effect with a table of a server's runs" in says


class TestDiff:
    def test_the_same_runs_do_not_differ(self, path, tmp_path):
        done = evict("diff", path, save(tmp_path, clean()), folder=tmp_path)
        assert done.exit_code == 0
        assert "no difference" in done.stdout

    def test_another_deployment_is_named_first(self, path, tmp_path):
        """Two GPUs differ in more than their numbers."""
        other = save(
            tmp_path, clean(step_ms=30.0, deployment=Deployment()), gpu="H200 NVL"
        )
        lines = evict("diff", path, other, folder=tmp_path).stdout.splitlines()
        assert lines[0] == "another deployment: gpu: H200 before, H200 NVL after"
        assert "K = 3 at batch 1: 20.0 ms before, 30.0 ms after (+50%)" in lines

    def test_steps_within_their_intervals_are_alike(self, tmp_path):
        paths = [save(tmp_path, rows(f"1,0,10|1,3,{ms}")) for ms in (20, 21)]
        assert evict("diff", *paths, folder=tmp_path).exit_code == 0
        paths[1] = save(tmp_path, rows("1,0,10|1,3,26|1,7,30"))
        done = evict("diff", *paths, "--json", folder=tmp_path)
        assert done.exit_code == 1
        lines = json.loads(done.stdout)
        assert len(lines) == 2 and lines[1] == "K = 7 at batch 1: only after"

    def test_another_text_is_named_by_its_lengths_and_its_fastest_draft(self, tmp_path):
        plain = run(1, 0, 10.0)
        paths = [
            save(tmp_path, [plain, *(run(1, k, 14 + k, length=n) for k, n in pairs)])
            for pairs in (((1, 1.8), (3, 3.0)), ((1, 1.7), (3, 1.9)))
        ]
        done = evict("diff", *paths, folder=tmp_path)
        assert done.exit_code == 1
        assert done.stdout.splitlines() == [
            "fastest at batch 1: K = 3 (1.76 times plain) before, K = 1 (1.13) after",
            "K = 3 at batch 1: 3.00 accepted before, 1.90 after (-37%)",
        ]

    def test_plain_runs_with_and_without_a_context_are_compared(self, tmp_path):
        plain = [run(1, 0, 10.0), run(1, 0, 10.0, context=900.0)]
        drafting = ([run(1, 3, ms, context=900.0, length=2.8)] for ms in (20.0, 40.0))
        paths = [save(tmp_path, plain + each) for each in drafting]
        done = evict("diff", *paths, folder=tmp_path)
        assert done.exit_code == 1 and "(+100%)" in done.stdout

    def test_lengths_of_several_runs_differ_beyond_their_intervals(self, tmp_path):
        def saved(*lengths):
            drafting = [run(1, 3, 20.0, length=n) for n in lengths]
            return save(tmp_path, [run(1, 0, 10.0), *drafting])

        first = saved(2.79, 2.8, 2.81)
        for other, code in ((saved(2.6, 2.61, 2.62), 1), (saved(2.7, 2.8, 2.85), 0)):
            assert evict("diff", first, other, folder=tmp_path).exit_code == code

    def test_tables_of_two_kinds_are_refused(self, path, saved_table, tmp_path):
        says = refused("diff", path, saved_table, folder=tmp_path)
        assert "compare two of one kind" in says


def test_a_signed_table_of_another_version_is_refused(saved_table, tmp_path):
    """With what makes it anew, for all that read tables."""
    document = json.loads(saved_table.read_text())
    document["provenance"]["origin"] = "served"
    del document["sha256"]
    saved_table.write_text(as_text(document))
    for command in ("show", "check", "report"):
        says = refused(command, saved_table, folder=tmp_path)
        assert "another version wrote it: fit or import its runs again" in says


def test_a_served_table_is_no_cost_table(path, tmp_path):
    (tmp_path / "t.parquet").touch()
    says = refused("calibrate", path, "t.parquet", folder=tmp_path)
    assert "no cost table" in says

"""What the documents name exists: commands, options, files, scripts."""

import re
import runpy
import shlex
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.main import get_command

from evict_profile.cli import app
from evict_profile.config import load_model, load_sweep
from evict_profile.config.sweep import GridSpec, StopSpec, SweepSpec
from evict_profile.integrations.vllm.checks import SUPPORTED
from evict_profile.served.probe.record import read_probe
from evict_profile.sweep.grid import make_grid
from evict_profile.table import COMPOSED, CostTable
from runners.roofline.options import Options as Roofline
from runners.sglang_verify.options import Options as Sglang
from tests.command import evict
from tests.shipped import tracked

ROOT = Path(__file__).parents[1]
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
DOCUMENTS = tracked("README.md", "docs/*.md", "examples/*.md", "scripts/*.md")
MODULES = sorted({*ROOT.glob("evict_profile/**/*.py"), *ROOT.glob("runners/**/*.py")})
CODE = re.compile(r"```sh\n(.*?)```|`([^`\n]+)`", re.DOTALL)
CALL = re.compile(r"^evict-profile ([a-z-]+)([^#\n]*)", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_their_options_exist(document):
    """Every `evict-profile ...` line is one that the command takes."""
    code = "\n".join(a or b for a, b in CODE.findall(document.read_text()))
    for name, rest in CALL.findall(code):
        options = {option for p in COMMANDS[name].params for option in p.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options, (name, rest)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_scripts_lead_somewhere(document):
    """Relative links, and the scripts that a reader is told to run."""
    text = document.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (document.parent / link).exists(), link
    for script in re.findall(r"python ((?:benchmarks|runners|docs)/\S+\.py)", text):
        assert (ROOT / script).is_file(), script
    for name in re.findall(r"python -m ((?:benchmarks|runners|tests)[.\w]*\w)", text):
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_anchors_are_headings_of_their_page(document):
    """As the site builds them: in lower case, with hyphens for what is no word."""
    for link, anchor in re.findall(
        r"\]\((?!https?:)([^)#]*)#([^)]+)\)", document.read_text()
    ):
        page = document.parent / link if link else document
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        plain = (re.sub(r"[^\w\s-]", "", each).strip().lower() for each in headings)
        assert anchor in {re.sub(r"[\s-]+", "-", each) for each in plain}, (
            link,
            anchor,
        )


PRIVATE = re.compile(
    r"(?i)\b(prices?|priced|pricing|ladders?|woken|wakes?|dear(er)?)\b"
)
"""Words for costs, capture sizes and activation that the field does not use."""


@pytest.mark.parametrize(
    "file", [*DOCUMENTS, *MODULES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_words_are_the_fields(file):
    assert not PRIVATE.findall(file.read_text())


FIGURATIVE = re.compile(
    r"(?i)\b((?<!\.)tells?|told|telling|foretold|alike|mend(s|ed|ing)?|"
    r"held against|woke|flatter(s|ed)?|believ(e|es|ed|ing)|earn(s|ed|ing)?|buys?|"
    r"bought|openings?|"
    r"by the clock|likewise|teach(es)?|taught|lonely|doors?|creeps?|at its word|"
    r"holds? still|paid whole|by turns|stands once|(is|are) worth|of waves|"
    r"where nobody said)\b"
)
"""Figures of speech for computation; docs/build/concepts.md has the terms."""
BARE = re.compile(r"help=\"(Print it|That |Else |It |And )")
"""Help without a verb, or without the noun of its pronoun."""
PACKAGE = ROOT / "evict_profile"
SOURCES = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.j2")])


@pytest.mark.parametrize(
    "file",
    [*DOCUMENTS, *SOURCES],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_pages_and_rooms_are_in_plain_words(file):
    text = file.read_text()
    assert not [found[0] for found in FIGURATIVE.finditer(text)]
    assert not BARE.findall(text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_runs_as_printed(document, monkeypatch):
    """Every block of Python, from the top of the checkout, with what it asserts."""
    monkeypatch.chdir(ROOT)
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        exec(compile(block, str(document), "exec"), {"__name__": "__main__"})


SMALL_TABLES = "examples/small_world/cost_tables"


@pytest.mark.parametrize(
    ("page", "read"),
    [("README.md", "examples/runs.csv"), ("docs/use/replay.md", SMALL_TABLES)],
)
def test_a_console_is_what_its_commands_print(tmp_path, page, read):
    [block] = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (tmp_path / read).parent.mkdir(parents=True)
    copy = shutil.copytree if (ROOT / read).is_dir() else shutil.copy
    copy(ROOT / read, tmp_path / read)
    for said in block.removeprefix("$ ").split("\n$ "):
        command, _, output = said.partition("\n")
        program, *words = shlex.split(command)
        if program == "cat":
            printed = (ROOT / words[0]).read_text()
        else:
            printed = evict(*words, folder=tmp_path).stdout
        assert " ".join(output.split()) in " ".join(printed.split()), command


def test_the_readme_shows_python():
    assert "```python" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_table_is_cut(document):
    """Rows of pipes without a header above them would be rendered as a paragraph."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$|^#[^\n]*", "", document.read_text())
    for block in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in block.strip().splitlines()]
        if any(line.startswith("|") for line in lines):
            assert all(line.startswith("|") for line in lines), block
            assert re.fullmatch(r"[-:| ]+", "".join(lines[1:2])), block


def test_exit_codes_are_those_of_the_help():
    """Each command whose help states the exit code 1 is in the row of the page."""
    page = (ROOT / "docs/reference/files.md").read_text()
    [row] = re.findall(r"^\| 1 \|.*$", page, re.MULTILINE)
    for name, command in COMMANDS.items():
        if "exit code is 1" in (command.help or ""):
            assert f"`{name}`" in row
        for option in command.params:
            if "exit code is 1" in (getattr(option, "help", None) or ""):
                assert f"`{name} {option.opts[0]}`" in row


def test_guides_name_only_versions_of_vllm_that_are_supported():
    parts = (ROOT / "docs" / part for part in ("decide", "measure", "use", "build"))
    guides = "".join(page.read_text() for part in parts for page in part.glob("*.md"))
    assert set(re.findall(r"vLLM (\d+\.\d+\.\d+)", guides)) == set(SUPPORTED)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(document):
    code = (a or b for a, b in CODE.findall(document.read_text()))
    targets = re.findall(r"^make ([\w./-]+)", "\n".join(code), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    for name, folder in re.findall(r"^(VENV\w*) \??:?= (\S+)", makefile, re.MULTILINE):
        makefile = makefile.replace(f"$({name})", folder)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert document != ROOT / "README.md" or {"demo", "demo-world", "test"} <= {
        *targets
    }


NO_GPU = re.compile(
    r"(?i)measured nothing\s+on\s+a\s+GPU|"
    r"(not|nothing)\s+(was\s+|yet\s+)?(measured|run)\s+on\s+a\s+GPU"
)


def test_that_no_gpu_was_measured_is_said_on_two_pages_at_most():
    pages = [page for page in DOCUMENTS if NO_GPU.search(page.read_text())]
    assert len(pages) <= 2, pages
    assert ROOT / "README.md" in pages


def test_hints_install_from_a_checkout():
    """No package index has the project."""
    for file in MODULES:
        assert "evict-profile[" not in file.read_text(), file


def test_the_page_of_gates_has_every_gate_of_the_shipped_tables():
    rows = (ROOT / "docs/measure/troubleshooting.md").read_text()
    for path in tracked("cost_tables/*.json"):
        table = CostTable.load(path)
        for gate in table.gates if table.origin != COMPOSED else ():
            assert f"| {gate.name} |" in rows, gate.name


SWEEP_FILES = ROOT / "docs/reference/sweep.md"


@pytest.mark.parametrize("spec", [SweepSpec, GridSpec, StopSpec, Sglang, Roofline])
def test_the_page_of_sweep_files_has_every_field(spec):
    page = SWEEP_FILES.read_text()
    fields = spec.__struct_fields__
    assert not [name for name in fields if not re.search(rf"`(stop\.)?{name}`", page)]


def test_the_sweep_file_that_is_shown_is_one(tmp_path):
    [block] = re.findall(r"```yaml\n(.*?)```", SWEEP_FILES.read_text(), re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(block)
    spec = load_sweep(str(path))
    assert make_grid(spec, load_model("qwen3-30b-a3b")).cells


def test_the_runs_that_are_shown_are_read(tmp_path):
    page = (ROOT / "docs/reference/files.md").read_text()
    [block] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "runs.jsonl"
    path.write_text(block)
    [(probed, [wave])] = read_probe(path)
    step_ms = 1000 * wave.batch * wave.accepted / wave.tokens_per_s
    assert probed.server.drafts == 3
    assert f"= {step_ms:.1f} ms" in page


def test_make_clean_leaves_what_was_measured():
    recipe = (ROOT / "Makefile").read_text().partition("\nclean:\n")[2]
    assert "rm -rf" in recipe and "run" not in recipe.casefold()


def test_the_nav_has_every_page():
    """And `make docs` makes the page of the command line."""
    nav = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    pages = {str(page.relative_to(ROOT / "docs")) for page in tracked("docs/*.md")}
    assert len(nav) == len(set(nav))
    assert pages | {"reference/cli.md"} == set(nav)


def test_the_plot_s_band_has_no_width_at_one_token():
    """C(1)/C(1) is 1, whatever the cost is off by."""
    low, high = runpy.run_path(str(ROOT / "docs/draw_cost.py"))["band"](
        np.array([1.0, 2.0]), 0.12
    )
    assert low[0] == high[0] == 1.0
    assert 1.6 < low[1] < 2.0 < high[1] < 2.4


def test_the_plot_is_a_drawing_that_says_what_is_composed():
    drawing = ROOT / "docs" / "cost.svg"
    assert ElementTree.parse(drawing).getroot().tag.endswith("svg")
    assert "real GPUs, composed and not measured" in drawing.read_text()


def test_the_diagrams_are_what_the_script_draws():
    drawings = runpy.run_path(str(ROOT / "docs/draw_diagrams.py"))["DRAWINGS"]
    stale = [
        n for n, draw in drawings.items() if (ROOT / "docs" / n).read_text() != draw()
    ]
    assert not stale, "run: python docs/draw_diagrams.py"


@pytest.mark.parametrize("name", [n for n, c in COMMANDS.items() if not c.hidden])
def test_each_command_has_an_example_that_it_takes(name):
    called, *words = shlex.split(COMMANDS[name].epilog.partition("evict-profile ")[2])
    assert called == name
    parser = COMMANDS[name].make_parser(COMMANDS[name].context_class(COMMANDS[name]))
    parser.parse_args(words)

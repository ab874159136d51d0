"""The package's own names are the pipeline, and load only when they are used."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import evict_profile

ROOT = Path(__file__).parents[1]


def test_each_name_is_that_of_its_module():
    for name, module in evict_profile.HOME.items():
        home = importlib.import_module(f"evict_profile.{module}")
        assert getattr(evict_profile, name) is getattr(home, name)
    assert not hasattr(evict_profile, "nothing")


def test_the_stub_has_the_same_names():
    stub = (ROOT / "evict_profile/__init__.pyi").read_text()
    assert {v: k for k, v in re.findall(r"profile\.([\w.]+) import (\w+)", stub)} == (
        evict_profile.HOME
    )


def test_the_package_alone_loads_no_library():
    code = "import sys, evict_profile; print({'torch', 'pandas'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_the_example_goes_from_a_model_to_decisions(tmp_path):
    """On a datasheet, which takes no machine."""
    command = [sys.executable, ROOT / "examples/pipeline.py", "tiny", "roofline"]
    done = subprocess.run([*command, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"verify \d+ tokens, drafts \[(True|False),", done.stdout)
    assert "tiny" in done.stdout and "break-even" in done.stdout
    assert list(tmp_path.glob("tables/*/tiny/roofline/1.0.0.json"))

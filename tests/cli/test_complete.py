"""A shell completes what a command takes."""

from typer.main import get_command

from evict_profile.advice.drafting import drafters
from evict_profile.cli import app
from evict_profile.integrations.exporters import ENGINES, FORMATS


def completed(command, option, begun):
    words = get_command(app).commands[command]
    [parameter] = [p for p in words.params if p.name == option]
    return [item.value for item in parameter.shell_complete(None, begun)]


def test_names_of_shipped_files_are_completed():
    assert "qwen3-30b-a3b" in completed("sweep", "model", "qwen3-30b")
    assert completed("sweep", "plan", "dem") == ["demo"]
    assert completed("advise", "gpu", "h2") == ["h200-sxm"]


def test_every_drafter_is_completed():
    assert {*completed("advise", "drafter", "")} == {*drafters()}


def test_every_format_of_an_export_is_completed():
    assert {*completed("export", "reader", "")} == {*ENGINES, *FORMATS}

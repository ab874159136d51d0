"""Writes docs/reference/cli.md, the page of all commands, from the commands themselves.

python docs/write_cli.py
"""

from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

from typer.main import get_command

from evict_profile.cli import app
from evict_profile.io import write_text


def lines() -> Iterator[str]:
    group: Any = get_command(app)
    context = group.make_context("evict-profile", [], resilient_parsing=True)
    yield f"# Command line\n\n{cleandoc(group.help)}\n"
    commands = [each for each in group.commands.values() if not each.hidden]
    for command in commands:
        summary = cleandoc(command.help).partition("\n")[0]
        yield f"- [`{command.name}`](#{command.name}): {summary}"
    yield ""
    for command in commands:
        yield from section(command, context)


def section(command: Any, parent: Any) -> Iterator[str]:
    """A command: what it does, how it is called, an example, its words."""
    context = command.make_context(
        command.name, [], parent=parent, resilient_parsing=True
    )
    example = command.epilog.removeprefix("Example: ")
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {command.name}\n\n{cleandoc(command.help)}\n"
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield f"```sh\n{example}\n```\n"
    records = (parameter.get_help_record(context) for parameter in command.params)
    for names, text in filter(None, records):  # a hidden option has none
        yield f"- `{names}`: {text.replace('  [', ' [')}"
    yield ""


if __name__ == "__main__":
    place = Path(__file__).parent / "reference" / "cli.md"
    write_text("\n".join(lines()), place)

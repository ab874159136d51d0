"""Writes the YAML of a GGUF's shape, which a sweep takes as its model.

python -m examples.llama_cpp model M.gguf > model.yaml
"""

from pathlib import Path

import typer
import yaml
from typer import Argument

from evict_profile.cli import ErrorGroup
from evict_profile.config import ModelSpec
from evict_profile.records import parse
from examples.llama_cpp.model_file import gguf_mapping

app = typer.Typer(
    cls=ErrorGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """Measure a GGUF in llama.cpp: the sweep's plan is sweep.yaml."""


@app.command()
def model(
    file: Path = Argument(help="GGUF, or the first of its parts.", dir_okay=False),
) -> None:
    """Print the shape of a GGUF as a model's YAML."""
    content = gguf_mapping(file)
    parse(ModelSpec, content, str(file))
    typer.echo(yaml.safe_dump(content, sort_keys=False), nl=False)


if __name__ == "__main__":
    app()

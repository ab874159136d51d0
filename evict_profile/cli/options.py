"""What commands share: the terminal they print on, and options that several take.

Such an option is spelt and explained once, so that it means the same in every command.
Options that come together are a dataclass, and a command takes it as one parameter.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from typer import Argument, Context, Option

from evict_profile.errors import ConfigError

console = Console()
stderr = Console(stderr=True)


def whole_table(path: Path | None) -> Path | None:
    """A table that a command reads, checked while the words are parsed: in no time."""
    if path is not None:
        from evict_profile.table.document import read_signed

        read_signed(path)
    return path


def whole_table_or_tree(path: Path) -> Path | None:
    """The same, or a folder of tables."""
    return path if path.is_dir() else whole_table(path)


Python = Annotated[str | None, Option(help="Interpreter that runs the engine.")]
TableFile = Annotated[
    Path, Argument(callback=whole_table, help="A cost table (.json).")
]
Tables = Annotated[Path, Option(help="Tree of tables to export into.")]
TracedTable = Annotated[
    Path, Option(callback=whole_table, help="Cost table of the model traced.")
]
Page = Annotated[Path, Option("--out", help="The page to write.")]
Json = Annotated[Path | None, Option("--json", help="All numbers as JSON.")]
Part = Annotated[str, Option(help="Only part i of n of the prompts, as i/n.")]
Workloads = Annotated[
    list[str] | None, Option("--workload", help="Repeatable.", show_default="all")
]
Source = Annotated[
    Path | None,
    Option(
        "--from",
        exists=True,
        help="Wheel or unpacked folder; else what pip installed.",
    ),
]


Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "bfloat16", "float32"]
Engine = Literal["vllm", "sglang", "trtllm", "llama-cpp"]


@dataclass(frozen=True)
class SweepOptions:
    """What to sweep, how and where; None keeps what the sweep's file says."""

    model: str = Option("qwen3-30b-a3b", help="Name, YAML, HF config.json or GGUF.")
    sweep_name: str = Option("demo", "--sweep", help="Sweep name, or its YAML.")
    out: Path | None = Option(None, help="Run folder; else runs/MODEL/SWEEP.")
    layers: int | None = Option(None, min=1, help="Layers to run; else auto.")
    device: Device | None = Option(None, help="Where layers run; else the sweep's.")
    dtype: Dtype | None = Option(None, help="Of weights, values; else the sweep's.")
    max_minutes: float = Option(float("inf"), help="Stop measuring after this long.")
    python: Python = None
    lib: Path | None = Option(
        None, exists=True, help="Your libllama.so, for the runner llama_cpp."
    )


@dataclass(frozen=True)
class NamedTable:
    """A table by its file, or by what it covers."""

    table: Path | None = Argument(
        None, callback=whole_table, help="A cost table (.json); or name it:"
    )
    model: str | None = Option(None, help="Name, also as on Hugging Face.")
    gpu: str | None = Option(None, help="Such as h200.")
    engine: str | None = Option(None, help="sglang, vllm or trtllm.")
    tp: int | None = Option(None, min=1, help="GPUs, if several tables are there.")
    dtype: str | None = Option(None, help="Of the experts: bf16, fp8, fp8_block ...")
    source: Source = None


@dataclass(frozen=True)
class AdviceOptions:
    """An acceptance, and what is asked with it."""

    accept: str = Option(
        help="0.75, lengths 1.84,2.51,3.01, shares 0.8,0.65, FILE.yaml[:curve], "
        "FILE.json of vLLM's metrics, or TRACE.parquet."
    )
    batch: list[int] | None = Option(
        None,
        min=1,
        help="All draft lengths of this one; repeatable.",
        show_default="the best of each of the table's",
    )
    traffic: str | None = Option(
        None,
        help="Share of plain decoding's time by batch, as 1:.5,8:.3,64:.2.",
        show_default="equal",
    )
    context: int | None = Option(
        None, help="Tokens in the cache.", show_default="its smallest"
    )
    draft_level_ms: float | None = Option(None, help="Time to draft one token more.")
    draft_table: Path | None = Option(
        None, callback=whole_table, help="Of the draft's GGUF, for llama.cpp."
    )


def check_read(ctx: Context, unread: Collection[str], where: str) -> None:
    """Check that no option was given which has no effect.

    Args:
        unread: names of the command's parameters that nothing reads.
        where: in which case, as the message goes on: "without --format".
    """
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if option.name in unread and source and source.name == "COMMANDLINE":
            raise ConfigError(f"{option.opts[0]} is not read {where}; leave it out")


def check_none_empty(words: Sequence[str]) -> None:
    """Check the words of a command: an empty one is a variable that was not set."""
    for before, word in pairwise(["", *words]):
        if not word or re.fullmatch("--[a-z-]+=", word):
            option = word or before
            named = option.rstrip("=") if option.startswith("--") else "an argument"
            raise ConfigError(f"{named} is empty; give it a value, or leave it out")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are dataclasses are an option a field instead."""
    groups: dict[str, type[Any]] = {}
    options: list[Parameter] = []
    for own in signature(command).parameters.values():
        if is_dataclass(own.annotation):
            groups[own.name] = own.annotation  # type: ignore[assignment]
            options += signature(groups[own.name]).parameters.values()
        else:
            options.append(own)

    @wraps(command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            told = {field.name: given.pop(field.name) for field in fields(group)}
            given[name] = group(**told)
        command(**given)

    named = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in options]
    call.__signature__ = Signature(named)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in named}
    return call

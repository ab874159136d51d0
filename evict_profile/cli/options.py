"""The terminal, and the options that several commands take."""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from typer import Argument, Context, Option

from evict_profile.cli import complete
from evict_profile.errors import ConfigError

console = Console()
stderr = Console(stderr=True)


def valid_table(path: Path | None) -> Path | None:
    """Check a table's file while the words are parsed, before libraries load."""
    if path is not None:
        from evict_profile.table.document import ForeignDocument, read_signed

        try:
            read_signed(path)
        except ForeignDocument:
            from evict_profile.served.table import SCHEMA

            read_signed(path, SCHEMA)
    return path


Python = Annotated[
    str | None,
    Option(
        help="Python interpreter that runs the engine.",
        show_default="this one",
    ),
]
TableFile = Annotated[Path, Argument(callback=valid_table, help="Cost table (.json).")]
Tables = Annotated[Path, Option(help="Folder to export cost tables into.")]
Traces = Annotated[
    Path | None,
    Argument(exists=True, help="Trace (.parquet, or a folder of its parts)."),
]
Page = Annotated[Path, Option("--out", help="Output file (HTML).")]
Json = Annotated[
    Path | None, Option("--json", help="Output file of all numbers (JSON).")
]
AsJson = Annotated[bool, Option("--json", help="Print one JSON document alone.")]
Part = Annotated[str, Option(help="Use only part i of n of the prompts, as i/n.")]
Workloads = Annotated[
    list[str] | None,
    Option(
        "--workload", help="Use only this workload; repeatable.", show_default="all"
    ),
]
Source = Annotated[
    Path | None,
    Option(
        "--from",
        exists=True,
        help="AIConfigurator's wheel, or its unpacked folder.",
        show_default="the installed package",
    ),
]
ACCEPT_HELP = (
    "How much is accepted: the first draft's chance (0.75), K:LENGTH (3:2.64), K and "
    "the mean rate (4:64%), lengths of K = 1, 2, 3 (1.84,2.51,3.01), a server's URL, "
    "or a file: of runs, FILE.yaml[:curve] or TRACE.parquet."
)
ModelName = Annotated[
    str | None,
    Option(
        help="Model name, also as on Hugging Face.",
        autocompletion=complete.shipped("models"),
    ),
]
GpuName = Annotated[
    str | None,
    Option(help="GPU name, such as h200.", autocompletion=complete.shipped("gpus")),
]
EngineName = Annotated[
    str | None,
    Option(
        help="Engine: sglang, vllm or trtllm.",
        autocompletion=complete.known("sglang", "vllm", "trtllm"),
    ),
]
Traffic = Annotated[
    str | None,
    Option(
        help="Share of plain decoding's time by batch size, as 1:.5,8:.3,64:.2.",
        show_default="equal",
    ),
]
Captured = Annotated[
    list[str] | None,
    Option(
        help="Sizes of your server's CUDA graphs, which must hold what is advised: "
        "requests of SGLang, tokens of vLLM, as 1,2,4; repeatable.",
    ),
]
ContextTokens = Annotated[
    int | None,
    Option(
        "--context",
        help="Context length in tokens.",
        show_default="the table's smallest",
    ),
]
Outside = Annotated[
    Literal["refuse", "clamp"],
    Option(help="Refuse what the table does not cover, or take its nearest costs."),
]
DraftLevelMs = Annotated[
    float | None,
    Option(
        help="Milliseconds of one forward of the drafter, for a sweep's table.",
        show_default="the table's, else assumed",
    ),
]
DRAFTERS = ["eagle3", "mtp", "mtp_head", "draft_model", "pard", "dflash", "as_served"]
DrafterKind = Annotated[
    str | None,
    Option(
        "--drafter",
        help=f"What drafts, for the flags: {', '.join(DRAFTERS)}.",
        autocompletion=complete.known(*DRAFTERS),
        show_default="as_served of runs; mtp if the model has MTP layers, else eagle3",
    ),
]


def batches_of(words: Sequence[str], option: str = "--batch") -> list[int]:
    sizes = [size.strip() for word in words for size in word.split(",")]
    if wrong := [size for size in sizes if not size.isdecimal() or int(size) < 1]:
        raise ConfigError(
            f"{option} {wrong[0]}: give whole numbers from 1 on, as in {option} 1,8"
        )
    return list(dict.fromkeys(map(int, sizes)))


def one_acceptance(words: Sequence[str] | None) -> str | None:
    if words and len(words) > 1:
        raise ConfigError(
            "--accept was given twice; give one, with several K as 3:2.51,7:3.02"
        )
    return words[0] if words else None


def reject_unused(ctx: Context, unused: Collection[str], where: str) -> None:
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if option.name in unused and source and source.name == "COMMANDLINE":
            raise ConfigError(f"{option.opts[0]} has no effect {where}; leave it out")


def reject_empty(words: Sequence[str]) -> None:
    """Check that no word is empty: it would be a variable that was not set."""
    for before, word in pairwise(["", *words]):
        if not word or re.fullmatch("--[a-z-]+=", word):
            option = word or before
            named = option.rstrip("=") if option.startswith("--") else "an argument"
            raise ConfigError(f"{named} is empty; give it a value, or leave it out")

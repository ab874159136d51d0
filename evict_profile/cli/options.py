"""What commands share: the terminal they print on, and options that several take.

An option is spelt and explained once, so that it means the same in every command.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()

Model = Annotated[str, typer.Option(help="Model name, its YAML, or a HF config.json.")]
SweepName = Annotated[str, typer.Option("--sweep", help="Sweep name, or its YAML.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; else runs/MODEL/SWEEP.")]
Layers = Annotated[int | None, typer.Option(help="MoE layers to measure; else auto.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str | None, typer.Option(help="auto, bfloat16 or float32.")]
PlanKind = Annotated[str | None, typer.Option("--plan", help="grid or adaptive.")]
Minutes = Annotated[float, typer.Option(help="Stop measuring after this long.")]
Python = Annotated[str | None, typer.Option(help="Interpreter that runs the engine.")]
Shard = Annotated[str, typer.Option(help="Measure shard i of n, as i/n.")]
Part = Annotated[str, typer.Option(help="Only part i of n of the prompts, as i/n.")]
Run = Annotated[Path, typer.Argument(help="Run folder of a sweep.")]
TableFile = Annotated[Path, typer.Argument(help="A cost table (.json).")]
Tables = Annotated[Path, typer.Option(help="Tree of tables to export into.")]
Traces = Annotated[Path, typer.Argument(help="A .parquet, or a folder of parts.")]
TracedTable = Annotated[Path, typer.Option(help="Cost table of the model traced.")]
World = Annotated[Path, typer.Argument(help="A small world: worlds/stdlib.")]
Tokens = Annotated[int, typer.Option(help="Tokens of each reply.")]
Prompts = Annotated[int, typer.Option(help="Prompts of each workload.")]
Depth = Annotated[int, typer.Option(help="Levels of a draft tree.")]
Topk = Annotated[int, typer.Option(help="Nodes expanded a level.")]
Nodes = Annotated[int, typer.Option(help="Nodes verified at most.")]
Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", help="Repeatable.", show_default="all"),
]
Json = Annotated[Path | None, typer.Option("--json", help="All numbers as JSON.")]

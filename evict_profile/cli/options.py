"""What commands share: the terminal they print on, and options that several take.

Such an option is spelt and explained once, so that it means the same in every command.
"""

from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from typer import Argument, Option

console = Console()
stderr = Console(stderr=True)

Model = Annotated[
    str, Option(help="Model name, its YAML, a HF config.json, or a GGUF.")
]
SweepName = Annotated[str, Option("--sweep", help="Sweep name, or its YAML.")]
RunOut = Annotated[Path | None, Option(help="Run folder; else runs/MODEL/SWEEP.")]
Layers = Annotated[int | None, Option(min=1, help="Layers to run; else auto.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    Option(help="Where layers run; else as the sweep says."),
]
Dtype = Annotated[
    Literal["auto", "bfloat16", "float32"] | None,
    Option(help="Of weights and values; else as the sweep says."),
]
Plan = Annotated[
    Literal["grid", "adaptive"] | None,
    Option(help="How cells are chosen; else as the sweep says."),
]
Minutes = Annotated[float, Option(help="Stop measuring after this long.")]
Python = Annotated[str | None, Option(help="Interpreter that runs the engine.")]
Lib = Annotated[
    Path | None,
    Option(help="Your libllama.so, for the runner llama_cpp."),
]
Run = Annotated[Path, Argument(help="Run folder of a sweep.")]
TableFile = Annotated[Path, Argument(help="A cost table (.json).")]
Tables = Annotated[Path, Option(help="Tree of tables to export into.")]
TracedTable = Annotated[Path, Option(help="Cost table of the model traced.")]
World = Annotated[Path, Argument(help="A small world: worlds/stdlib.")]
Recording = Annotated[Path, Option("--out", help="The recording (.parquet).")]
Page = Annotated[Path, Option("--out", help="The page to write.")]
Json = Annotated[Path | None, Option("--json", help="All numbers as JSON.")]
Prompts = Annotated[int, Option(help="Prompts of each workload.")]
Tokens = Annotated[int, Option(help="Tokens of each reply.")]
Depth = Annotated[int, Option(help="Levels of a draft tree.")]
Topk = Annotated[int, Option(help="Nodes expanded a level.")]
Nodes = Annotated[int, Option(help="Nodes verified at most.")]
Part = Annotated[str, Option(help="Only part i of n of the prompts, as i/n.")]
Workloads = Annotated[
    list[str] | None, Option("--workload", help="Repeatable.", show_default="all")
]
Lengths = Annotated[
    str | None, Option(help="Accepted lengths of K = 1, 2, ..., as 1.84,2.51,3.01.")
]
Golden = Annotated[
    Path | None,
    Option(help="YAML of accepted lengths by model and K, as InferenceX's."),
]
Curve = Annotated[str | None, Option(help="Curve of that YAML, if it has several.")]
Rate = Annotated[
    float | None, Option(help="Chance that a draft is accepted, alike for all.")
]
Metrics = Annotated[
    Path | None,
    Option(help="vLLM responses with per-request acceptance (JSON, JSONL)."),
]
TraceFile = Annotated[Path | None, Option("--trace", help="Trace of draft trees.")]
ByPosition = Annotated[
    str | None,
    Option("--acceptance", help="Shares accepted by position, as 0.8,0.65,0.5."),
]
LevelMs = Annotated[
    float | None, Option("--draft-level-ms", help="Time to draft one token more.")
]
Context = Annotated[
    int | None, Option(help="A context of the table; else its smallest.")
]

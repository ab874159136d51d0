"""What verification costs in MoE speculative decoding: measure it, fit it, use it.

The names below are the pipeline, from a model to a decision. Each loads when it is
first used: the command line and the plug-ins of engines need few of them.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

HOME = {
    "load_model": "config",
    "load_sweep": "config",
    "Store": "sweep.store",
    "run_sweep": "sweep.engine",
    "fit_run": "fit.fitted",
    "export_table": "fit.export",
    "CostTable": "table",
    "Truncator": "runtime",
    "advise": "report.advice",
}
"""The module of each name. `__init__.pyi` has their types."""


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *HOME]

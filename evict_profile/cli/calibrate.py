from pathlib import Path

from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, parse_share, say


def calibrate(
    ctx: Context,
    table: options.TableFile,
    traces: Path = Argument(
        exists=True,
        help="Trace (.parquet, or a folder of its parts), routes of `probe` (.jsonl), "
        "or a server's state (.json).",
    ),
    tables: Path | None = Option(
        None,
        help="Folder to export the table into.",
        show_default="beside the table",
    ),
    workload: options.Workloads = None,
    temperature: float | None = Option(
        None,
        help="Use only the steps recorded at this temperature.",
        show_default="all, if they have one",
    ),
    part: options.Part = "1/1",
) -> None:
    """Calibrate a table by traces, by routes of `probe`, or by a server's state.

    The table is written as its next version.
    """
    check_folder(tables or table.parent)
    if traces.suffix in (".jsonl", ".json"):
        unused = {"workload", "temperature", "part"}
        reject_unused(ctx, unused, "with routes or a server's state")
        _calibrate_activation(table, traces, tables)
        return
    temperatures = [] if temperature is None else [temperature]
    choice = workload or [], temperatures, parse_share("--part", part)
    _calibrate_by_trace(table, traces, choice, tables)


def _calibrate_activation(path: Path, source: Path, tables: Path | None) -> None:
    from evict_profile.calibrate.activation import learnt_curve, routed_curve
    from evict_profile.fit.export import export_workload, outcome, with_workload
    from evict_profile.table import CostTable

    table = CostTable.load(path)
    if source.suffix == ".json":
        curve = learnt_curve(source, table)
    elif (routed := routed_curve([source], table)) is None:
        raise ConfigError(
            f"{source}: holds no routes; learn them with: evict-profile probe URL "
            f"--routes --out {source}"
        )
    else:
        curve = routed
    say(console, f"activation: {curve.workload}")
    table = with_workload(table, table.acceptance, curve, None)
    say(console, outcome(*export_workload(table, path, tables)))


def _calibrate_by_trace(
    path: Path,
    traces: Path,
    choice: tuple[list[str], list[float], tuple[int, int]],
    tables: Path | None,
) -> None:
    from evict_profile.calibrate.study import calibrated_table, calibration_study
    from evict_profile.fit.export import export_workload, outcome
    from evict_profile.report.calibration import show_calibration
    from evict_profile.table import CostTable
    from evict_profile.traces import load_traces
    from evict_profile.traces.trace import check_one_temperature

    workloads, temperatures, part = choice
    before = CostTable.load(path)
    trace = load_traces(traces).only(workloads, temperatures).part(*part)
    check_one_temperature(trace)
    study = calibration_study(trace, before)
    show_calibration(console, study, before)
    calibrated, written = export_workload(calibrated_table(study, before), path, tables)
    say(console, outcome(calibrated, written))

"""The command about many machines."""

from pathlib import Path

import typer
from typer import Argument, Option

from evict_profile.cli import options
from evict_profile.cli.options import console
from evict_profile.errors import Interrupted
from evict_profile.io import check_folder, say, write_text


def fleet(
    path: Path = Argument(metavar="FLEET", help="The fleet (.yaml)."),
    address: str | None = Option(None, help="Of a Ray cluster, or auto."),
    plan_only: bool = Option(False, "--plan-only", help="Freeze and print the plan."),
    out: Path | None = Option(None, help="Its folder; else runs/fleet/NAME."),
    tables: options.Tables = Path("cost_tables"),
) -> None:
    """Measure many models on machines that see one folder; again, it continues."""
    from evict_profile.fleet.spec import load_fleet, pairs_of

    spec = load_fleet(path)  # what is mistyped, before the other libraries load
    pairs = pairs_of(spec)

    from evict_profile.fleet.run import FleetFolder, run_fleet
    from evict_profile.report.many import fleet_page, show_fleet

    folder = FleetFolder(out or Path("runs") / "fleet" / spec.name)
    check_folder(tables)
    folder.freeze(pairs)
    show_fleet(console, folder, pairs)
    if plan_only:
        return
    try:
        with folder.locked():
            run_fleet(folder, spec, pairs, address, tables, console)
    except KeyboardInterrupt as interruption:
        raise Interrupted(
            f"interrupted; {folder.folder} is kept, the same command continues it"
        ) from interruption
    page = folder.folder / "tables.html"
    write_text(fleet_page(folder, spec.name, pairs), page)
    show_fleet(console, folder, pairs)
    say(console, f"page: {page}")
    if not all(map(folder.table, pairs)):
        raise typer.Exit(1)

"""Commands about many machines: a fleet of sweeps, how far it is, and a watch."""

from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from evict_profile.cli import options
from evict_profile.cli.options import console
from evict_profile.errors import Interrupted
from evict_profile.io import check_folder, say, write_text

START = "start"


class FleetGroup(TyperGroup):
    """`fleet FLEET.yaml` is `fleet start FLEET.yaml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names, or the one that starts a fleet."""
        if args and args[0] not in self.commands:
            args = [START, *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Options of `start` may stand before its file."""
        if args and args[0].startswith("--") and args[0] != "--help":
            args = [START, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=FleetGroup,
    no_args_is_help=True,
    help="Sweep many models on many machines, from one frozen plan.",
)

Address = Option(None, help="Of a Ray cluster, or auto; else this machine alone.")


@app.command()
def start(
    fleet: Path = Argument(help="The fleet (.yaml)."),
    address: str | None = Address,
    plan_only: bool = Option(False, "--plan-only", help="Freeze and print the plan."),
    out: Path | None = Option(None, help="Folder of the fleet; else runs/fleet/NAME."),
    tables: options.Tables = Path("cost_tables"),
) -> None:
    """Measure all pairs of a fleet and publish their tables; again, it continues."""
    from evict_profile.fleet.spec import load_fleet

    spec = load_fleet(fleet)  # what is mistyped, before the other libraries load

    from evict_profile.deadline import Deadline, interruptible
    from evict_profile.fleet.driver import work
    from evict_profile.fleet.folder import FleetFolder
    from evict_profile.fleet.plan import make_plan
    from evict_profile.report.fleet import fleet_page, show_pairs, show_plan

    plan = make_plan(spec)
    folder = FleetFolder(out or Path("runs") / "fleet" / spec.name)
    check_folder(tables)
    with folder.locked():
        folder.freeze(plan)
        show_plan(console, folder, plan)
        if plan_only:
            return
        with interruptible(Deadline()) as deadline:
            work(folder, plan, spec.budget, address, tables, deadline, console)
        write_text(fleet_page(folder, plan), folder.folder / "atlas.html")
    show_pairs(console, folder, plan)
    say(console, f"atlas: {folder.folder / 'atlas.html'}")
    if deadline.interrupted:
        raise Interrupted(
            f"interrupted; {folder.folder} is kept, the same command continues it"
        )
    if any(each.state != "published" for each in folder.outcomes().values()):
        raise typer.Exit(1)


@app.command()
def status(run: Path = Argument(help="Folder of a fleet.")) -> None:
    """Print what is done, what is open, what failed and why."""
    from evict_profile.fleet.folder import FleetFolder
    from evict_profile.report.fleet import show_pairs

    folder = FleetFolder(run)
    show_pairs(console, folder, folder.plan())


@app.command()
def watch(
    tree: Path = Argument(help="Tree of tables."),
    address: str | None = Address,
    fleet: Path | None = Option(None, help="The fleet whose engines are needed."),
    minutes: float = Option(60.0, min=0.01, help="That one recheck may take."),
) -> None:
    """Recheck each table on a machine that it names; exit code 1 if any drifted."""
    from evict_profile.fleet.cluster import connected
    from evict_profile.fleet.spec import load_fleet
    from evict_profile.fleet.watch import newest_tables
    from evict_profile.fleet.watch import watch as watched

    engines = load_fleet(fleet).runners.values() if fleet else ()
    tables = newest_tables(tree)
    drifted = False
    with connected(address) as ray:
        for found in watched(ray, tables, engines, 60.0 * minutes):
            where = f" ({found.host})" if found.host else ""
            say(console, f"{found.verdict}: {found.path}{where}: {found.words}")
            drifted = drifted or found.verdict == "drifted"
    if drifted:
        raise typer.Exit(1)

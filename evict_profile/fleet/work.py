"""One run of a fleet: what is whole already is published, the rest is measured."""

from pathlib import Path

from rich.console import Console

from evict_profile.deadline import Deadline
from evict_profile.fleet.driver import Driver
from evict_profile.fleet.folder import FleetFolder
from evict_profile.fleet.plan import FleetPlan
from evict_profile.fleet.publish import Publisher
from evict_profile.fleet.spec import Budget
from evict_profile.progress import progress_bar


def work(
    folder: FleetFolder,
    plan: FleetPlan,
    budget: Budget,
    address: str | None,
    tables: Path,
    deadline: Deadline,
    console: Console,
) -> None:
    """Continue a fleet. Ray is needed only where a shard is still to be measured."""
    from evict_profile.fleet.cluster import RayCluster, connected

    due = [pair for pair in plan.pairs if not folder.is_published(pair)]
    left = [job for p in due for job in p.jobs if not folder.finished(job)]
    with Publisher(folder, tables) as publisher, progress_bar(console) as shown:
        driver = Driver(folder, budget, publisher, shown, deadline, bool(address))
        driver.begin(due, left)
        if left:
            resources = sorted({p.engine.resource for p in due if p.engine.resource})
            with connected(address, resources) as ray:
                driver.measure(RayCluster(ray))
        driver.finish()

"""From whole shards to a table: merged if machines are equal, fitted, through gates."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from evict_profile.errors import EvictProfileError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import Fitted, fit_run
from evict_profile.fleet.folder import FleetFolder, Outcome
from evict_profile.fleet.plan import FleetPair
from evict_profile.records import replace
from evict_profile.report.cost_page import write_report
from evict_profile.sweep.merge import merge
from evict_profile.sweep.store import Store
from evict_profile.table import CostTable, measured, tables_below


class Publisher:
    """Publishes pairs one after the other, beside the driver's loop."""

    def __init__(self, folder: FleetFolder, tables: Path) -> None:
        self._folder, self._tables = folder, tables
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._due: list[tuple[FleetPair, Future[Outcome]]] = []

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.shutdown(cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Whether a pair is not published yet."""
        return any(not future.done() for _, future in self._due)

    def publish(self, pair: FleetPair, measured_as: Outcome) -> None:
        """Publish a pair whose shards are whole, as soon as may be."""
        future = self._worker.submit(self._outcome, pair, measured_as)
        self._due.append((pair, future))

    def ended(self) -> Iterator[tuple[FleetPair, Outcome]]:
        """Pairs that were published or refused since it was last asked."""
        done = [each for each in self._due if each[1].done()]
        self._due = [each for each in self._due if each not in done]
        for pair, future in done:
            yield pair, future.result()

    def _outcome(self, pair: FleetPair, so_far: Outcome) -> Outcome:
        try:
            table = publish(self._folder, pair, self._tables)
        except EvictProfileError as error:
            return replace(so_far, state="refused", why=str(error))
        return replace(so_far, state="published", table=str(table.resolve()))


def publish(folder: FleetFolder, pair: FleetPair, tables: Path) -> Path:
    """Export the table of a pair and write its report; the table's path."""
    fitted = fit_run(whole_run(folder, pair))
    path = published(fitted, tables) or export_table(fitted, tables)[1]
    write_report(fitted, CostTable.load(path), folder.pair(pair) / "report.html")
    return path


def whole_run(folder: FleetFolder, pair: FleetPair) -> Store:
    """The run of all shards of a pair."""
    stores = [folder.store(job) for job in pair.jobs]
    if len(stores) == 1:
        return stores[0]
    whole = Store(folder.pair(pair) / "merged")
    if not whole.exists():
        merge(stores, whole)
    return whole


def published(fitted: Fitted, tables: Path) -> Path | None:
    """The table of this very run, where a driver was ended right after its export."""
    mine = replace(measured(fitted.provenance), samples_sha256="")
    for found in tables_below(tables):
        made = found.table.provenance if found.table else None
        if made and replace(made, samples_sha256="") == mine:
            return found.path
    return None

"""A run, fitted: its samples, the cost model, intervals and held-out errors.

Made from a run's folder (`fit_run`), from a table and the samples beside it
(`fitted_of_table`), or from what an adaptive sweep has so far (`fit_uncertainty`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd

from evict_profile import __version__
from evict_profile.cells import CELL_FIELDS, OK, Cell, with_current_parts, with_latency
from evict_profile.config import ModelSpec
from evict_profile.cost_model import features_at
from evict_profile.errors import StoreError, TableError
from evict_profile.fit.baselines import HeldOut, compare_fits, fit_hinge, held_out
from evict_profile.fit.hinge import (
    ENSEMBLE_SEED,
    FIT_SPLIT,
    CostModel,
    Points,
    bootstrap,
    ensemble,
    fit_cost,
    points_of,
)
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.plan import FitUncertainty, History, Uncertainty
from evict_profile.sweep.store import Header, Store, history
from evict_profile.table import CostTable, DraftClock, Provenance, files_of

FEWEST_LAYER_CELLS, FEWEST_NON_MOE_CELLS = 8, 3


@dataclass(frozen=True)
class Fitted:
    """Samples of one run and all that is derived from them.

    Attributes:
        ladder: the captured graph widths.
        provenance: as a table holds it; the samples' hash is empty for a run whose
            table is not exported yet.
        frame: the samples, a row each.
        clocks: what the runner said of drafting; none where it cannot draft.
    """

    model: ModelSpec
    ladder: tuple[int, ...]
    provenance: Provenance
    frame: pd.DataFrame
    cost: CostModel
    clocks: tuple[DraftClock, ...] = ()

    @cached_property
    def latencies(self) -> dict[Cell, list[float]]:
        """Latencies of each cell in the order measured."""
        return history(self.frame)

    @cached_property
    def points(self) -> Points:
        """The median latency of each cell that has one."""
        return points_of(self.latencies)

    @cached_property
    def layer_points(self) -> Points:
        """The cells that the layers' fit is made of."""
        return self.points.where("layers", FIT_SPLIT)

    @cached_property
    def replicates(self) -> list[CostModel]:
        """Bootstrap replicates of the cost model."""
        return bootstrap(self.cost, self.points, self.provenance.sweep.seed)

    @cached_property
    def held_out(self) -> dict[str, HeldOut]:
        """Held-out predictions of the hinge fit and its baselines."""
        seed = self.provenance.sweep.seed
        return compare_fits(self.model, self.layer_points, seed)

    @cached_property
    def anchor(self) -> Cell:
        """The cell measured in every round."""
        return make_grid(self.provenance.sweep, self.model).anchor

    def natural_error(self) -> ErrorSummary | None:
        """Error on naturally routed cells, priced at the union that was observed."""
        measured = self.points.where("layers", "natural")
        if not len(measured):
            return None
        return summarise_errors(self.natural_us(measured), measured.latency_us)

    def natural_us(self, natural: Points) -> Floats:
        """Price of naturally routed cells at their mean observed union."""
        axes = ("tokens", "context", "batch")
        tokens, context, batch = (
            np.array([float(getattr(c, axis)) for c in natural.cells]) for axis in axes
        )
        union = self.observed_union(natural)
        features = features_at(self.model.price_shape, tokens, union, context, batch)
        return self.cost.layers.latency_us(features)

    def observed_union(self, natural: Points) -> Floats:
        """Mean observed union of each cell, float64 [cells]."""
        timed = with_latency(self.frame)
        natural_rows = timed[timed["split"] == "natural"]
        by = ["part", "width", "context", "batch"]
        means = natural_rows.groupby(by)["observed_union"].mean()
        return np.array(
            [means[(c.part, c.width, c.context, c.batch)] for c in natural.cells]
        )


def fit_run(store: Store) -> Fitted:
    """Fit the samples of a run.

    Raises:
        StoreError: no run, damaged samples, or too few cells for a fit.
    """
    header, frame = store.header(), store.frame()
    latencies = {cell: values for cell, values in history(frame).items() if values}
    _require_cells(store.folder, header, latencies)
    points = points_of(latencies)
    cost = fit_cost(points, header.model, int(header.fingerprint["layers"]))
    ladder = tuple(header.opened["ladder"])
    provenance = _provenance(header, frame, len(points))
    return Fitted(header.model, ladder, provenance, frame, cost, store.clocks())


def fitted_of_table(table_path: Path) -> tuple[Fitted, CostTable]:
    """Rebuild what a table was made from; the cost is the table's own, not a refit.

    Raises:
        TableError: the table is damaged, or its samples are missing or not those
            that it was made from.
        ConfigError: a field of the table is missing or of the wrong kind.
    """
    table = CostTable.load(table_path)
    frame = with_current_parts(pd.read_parquet(samples_of(table_path, table)))
    ladder, cost = table.axes.ladder, cost_of(table)
    return Fitted(table.model, ladder, table.provenance, frame, cost), table


def cost_of(table: CostTable) -> CostModel:
    """The cost model of a table's fit."""
    cost, layers = table.cost, table.fit.measured_layers
    return CostModel(table.model, layers, cost.layers, cost.non_moe)


def samples_of(table_path: Path, table: CostTable) -> Path:
    """The file of samples beside a table.

    Raises:
        TableError: it is missing, or is not what the table was made from.
    """
    path = files_of(table_path)[1]
    if not path.is_file():
        raise TableError(
            f"{path}: is missing, and holds the table's samples; put the file "
            f"that came with {table_path.name} back beside it"
        )
    if file_sha256(path) != table.provenance.samples_sha256:
        raise TableError(
            f"{path}: is not the file that {table_path.name} was made from (its "
            "sha256 differs); fetch the two together again"
        )
    return path


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    return sha256(path.read_bytes()).hexdigest()


def fit_uncertainty(model: ModelSpec, measured_layers: int) -> FitUncertainty:
    """How unsure a fit of the samples so far is: the guide of an adaptive sweep.

    The standard deviation of the bootstrap ensemble's predictions over their mean,
    cell by cell, says where a measurement would teach most.
    """

    def uncertainty(history: History, cells: Sequence[Cell]) -> Uncertainty:
        points = points_of(history)
        cost = fit_cost(points, model, measured_layers)
        forced = points.where("layers", FIT_SPLIT)
        error = held_out(fit_hinge, model, forced, ENSEMBLE_SEED).error
        others = np.stack([_own_us(other, cells) for other in ensemble(cost, points)])
        spread = others.std(axis=0) / others.mean(axis=0)
        return Uncertainty(error, dict(zip(cells, spread.tolist(), strict=True)))

    return uncertainty


def drift_of(frame: pd.DataFrame) -> float:
    """Relative change of latency, last third of the rounds against the first.

    The median over every cell measured in both thirds, each against itself. The
    anchor is always among them; with it alone, a few samples would decide.
    """
    timed = with_latency(frame)
    share = timed["round"].rank(pct=True)
    by = list(CELL_FIELDS)
    first, last = (
        timed[third].groupby(by)["latency_us"].median()
        for third in (share <= 1.0 / 3.0, share > 2.0 / 3.0)
    )
    changes = (last / first).dropna()
    return float(changes.median() - 1.0) if len(changes) else 0.0


def aa_floor(latencies: Mapping[Cell, Sequence[float]]) -> float:
    """What differs when nothing does: p95 of odd against even samples' medians."""
    pairs = [v for v in latencies.values() if len(v) >= 4]
    changes = [abs(np.median(v[1::2]) / np.median(v[::2]) - 1.0) for v in pairs]
    return float(np.percentile(changes, 95)) if changes else 0.0


def measured_minutes(at_unix: Floats) -> float:
    """Time spent measuring; a gap of over a minute was an interruption."""
    gaps = np.diff(np.sort(at_unix))
    return round(float(gaps[gaps < 60.0].sum()) / 60.0, 2)


def _require_cells(
    folder: Path, header: Header, latencies: Mapping[Cell, Sequence[float]]
) -> None:
    forced = sum(cell.split == FIT_SPLIT for cell in latencies)
    non_moe = sum(cell.part == "non_moe" for cell in latencies)
    fewest_non_moe = 0 if header.sweep.whole else FEWEST_NON_MOE_CELLS
    if forced < FEWEST_LAYER_CELLS or non_moe < fewest_non_moe:
        raise StoreError(
            f"{folder}: holds {forced} forced and {non_moe} non-MoE cells, and a fit "
            f"needs {FEWEST_LAYER_CELLS} and {fewest_non_moe}; run the same sweep "
            "again if it was not finished, else add widths or unions to its grid"
        )
    anchor = make_grid(header.sweep, header.model).anchor
    if anchor not in latencies:
        raise StoreError(
            f"{folder}: its anchor ({anchor}) was never measured, so drift is "
            "unknown; see its reason in the parts, mend it, and sweep anew"
        )


def _provenance(header: Header, frame: pd.DataFrame, cells: int) -> Provenance:
    timed = with_latency(frame)
    skipped = frame.loc[frame["status"] != OK, "status"].value_counts()
    reference = timed["reference_us"].median()
    return Provenance(
        fingerprint=header.fingerprint,
        sweep=header.sweep,
        plan_sha256=header.plan_sha256,
        samples_sha256="",
        samples=len(timed),
        cells=cells,
        skipped={str(status): int(count) for status, count in skipped.items()},
        started=_when(header.started_unix),
        finished=_when(float(timed["at_unix"].max())),
        measured_minutes=measured_minutes(timed["at_unix"].to_numpy()),
        bandwidth_gbps=header.opened["bandwidth_gbps"],
        union_test=header.union_test,
        scaling_test=header.scaling_test,
        clock=header.fingerprint["clock"],
        reference_us=None if np.isnan(reference) else float(reference),
        aa_floor=aa_floor(history(frame)),
        drift=drift_of(frame),
        evict_profile=__version__,
        dtype_reason=header.opened.get("dtype_reason", ""),
    )


def _when(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")


def _own_us(cost: CostModel, cells: Sequence[Cell]) -> Floats:
    """Latency of each cell's own part; naturally routed cells teach a fit nothing."""
    is_non_moe = np.array([cell.part == "non_moe" for cell in cells])
    return np.where(is_non_moe, cost.non_moe_us(cells), cost.layers_us(cells))

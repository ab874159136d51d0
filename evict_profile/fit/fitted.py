"""A run, fitted: its samples, the cost model, intervals and held-out errors."""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from evict_profile.cells import OK, Cell, cells_of, frame_of, places_of
from evict_profile.config import ModelSpec
from evict_profile.cost_model import Features, ForwardCost, Term, design, features_at
from evict_profile.drafting import DraftClock
from evict_profile.errors import DataError
from evict_profile.fit.baselines import FITTERS, Fitter, fit_terms, held_out
from evict_profile.fit.hinge import (
    Uncertainty,
    fit_cost,
    layer_terms,
    parts_of,
    rest_terms,
)
from evict_profile.fit.intervals import STANDARD_ERRORS_95, interval, misfit_of
from evict_profile.fit.points import (
    HeldOut,
    features_of,
    points_of,
    split_points,
    undisturbed,
)
from evict_profile.fit.provenance import check_header, provenance_of, scaling_half_width
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.sweep.grid import Grid, make_grid, too_few
from evict_profile.sweep.latency import Samples
from evict_profile.sweep.store import Header, Store
from evict_profile.table import DATASHEET, Composition, CostTable, Provenance
from evict_profile.table.document import samples_of

MIN_UNSEEN_CELLS = 8
"""Below which the misfit is judged by held-out cells as well."""


@dataclass(frozen=True)
class Fitted:
    """Samples of one run and all that is derived from them.

    `clocks` is what the runner said of drafting; none where it cannot draft.
    """

    model: ModelSpec
    capture_sizes: tuple[int, ...]
    provenance: Provenance | Composition
    samples: Samples
    cost: ForwardCost
    clocks: tuple[DraftClock, ...] = ()
    more_terms: ClassVar[tuple[Term, ...]] = ()

    @property
    def frame(self) -> pd.DataFrame:
        return self.samples.frame

    @cached_property
    def _grid(self) -> Grid:
        return make_grid(self.provenance.sweep, self.model)

    @cached_property
    def _split(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        return split_points(self.samples.cells, self._grid, self.capture_sizes)

    @cached_property
    def points(self) -> pd.DataFrame:
        """The median latency of each cell that has one, validation cells apart."""
        return self._split[0]

    @cached_property
    def layer_points(self) -> pd.DataFrame:
        return parts_of(self.points)[0]

    @cached_property
    def level_cells(self) -> tuple[Cell, ...]:
        levels = set(self._grid.cells)
        return tuple(c for c in self.layer_points.index if c in levels)

    @cached_property
    def _uncertainties(self) -> tuple[Uncertainty, Uncertainty]:
        layers, rest = parts_of(self.points)
        shape, cost = self.cost.shape, self.cost
        return (
            Uncertainty(cost.layers, shape, layers),
            Uncertainty(cost.non_moe, shape, rest),
        )

    def noise_us(self, features: Features) -> Floats:
        """Standard errors of whole forwards' costs by the residuals, [places]."""
        layers, rest = self._uncertainties
        return np.hypot(
            self.cost.layer_scale * layers.us(design(self.cost.layers.terms, features)),
            rest.us(design(self.cost.non_moe.terms, features)),
        )

    def layers_noise_us(self, values: Floats) -> Floats:
        """Standard errors of measured layers, for sums of terms [places, terms]."""
        return self._uncertainties[0].us(values)

    @cached_property
    def held_out(self) -> dict[str, HeldOut]:
        seed = self.provenance.sweep.seed
        terms = (*layer_terms(self.model.cost_shape), *self.more_terms)
        hinge: dict[str, Fitter] = {"hinge": partial(fit_terms, terms, True)}
        return {
            name: held_out(fitter, self.model, self.layer_points, seed)
            for name, fitter in (hinge | FITTERS).items()
        }

    @cached_property
    def non_moe_error(self) -> ErrorSummary | None:
        """Held-out error of the rest of the model, over the cost of a whole forward."""
        rest = parts_of(self.points)[1]
        if not len(rest):
            return None
        fitter = partial(fit_terms, rest_terms(self.model), True)
        unseen = held_out(fitter, self.model, rest, self.provenance.sweep.seed)
        tokens, _, context, batch = places_of(rest)
        union = np.array([self.model.uniform_union(t) for t in tokens])
        whole_us = self.cost.latency_us(tokens, union, context, batch)
        missed_us = unseen.predicted_us - unseen.latency_us
        return summarise_errors(whole_us + missed_us, whole_us)

    @cached_property
    def anchor(self) -> Cell:
        return self._grid.anchor

    @cached_property
    def validation(self) -> HeldOut:
        points = undisturbed(self._split[1])
        features = features_of(self.cost.shape, points)
        return HeldOut(points, self.cost.layers.latency_us(features))

    @cached_property
    def natural(self) -> HeldOut:
        points = undisturbed(points_of(self.points, "layers", "natural"))
        at_union = points.assign(union=points["observed_union"])
        features = features_of(self.cost.shape, at_union)
        return HeldOut(points, self.cost.layers.latency_us(features))

    @cached_property
    def natural_unions(self) -> dict[int, pd.Series]:
        rows = self.samples.timed.query("part == 'layers' and split == 'natural'")
        by_tokens = rows.assign(tokens=rows["width"] * rows["batch"]).groupby("batch")
        return {
            int(str(batch)): cells.groupby("tokens")["observed_union"].mean()
            for batch, cells in by_tokens
        }

    def costs_at(
        self, tokens: Floats, union: Floats, context: ArrayLike, batch: ArrayLike
    ) -> tuple[Floats, Floats, Floats]:
        """Costs of places, and their 95 % intervals: each float64 [places]."""
        given = (tokens, union, context, batch)
        places = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in given))
        cost_us = self.cost.latency_us(*places)
        noise_us = self.noise_us(features_at(self.cost.shape, *places))
        return cost_us, *interval(cost_us, noise_us, self.misfit)

    @cached_property
    def half_width(self) -> float:
        """Relative half-width, median over cells, of a cost's 95 % interval."""
        places = places_of(frame_of(self.level_cells))
        cost_us, low_us, high_us = self.costs_at(*places)
        return float(np.median((high_us - low_us) / 2.0 / cost_us))

    @cached_property
    def misfit(self) -> float:
        """Relative standard error that noise does not explain, of every cost."""
        unseen = [self.validation, self.natural]
        if sum(len(cells.points) for cells in unseen) < MIN_UNSEEN_CELLS:
            unseen.append(self.held_out["hinge"])
        shared = self.shared_half_width / STANDARD_ERRORS_95
        return float(np.hypot(misfit_of(*unseen), shared))

    @property
    def shared_half_width(self) -> float:
        """Relative half-width, 95 %, that sessions and scaled layers leave to all
        costs.
        """
        origin = self.provenance
        if isinstance(origin, Composition):
            return 0.0
        sessions = origin.sessions.half_width if origin.sessions else 0.0
        alone = origin.clock != DATASHEET and origin.fingerprint["layers"] == 1
        scale = self.cost.layer_scale
        scaling = scaling_half_width(origin.scaling_test, scale, alone)
        return float(np.hypot(sessions, scaling))

    def us_per_expert(self, small: Cell, large: Cell) -> tuple[float, float]:
        """Mean slope in U of a MoE layer between two cells, and its standard error."""
        cost, both = self.cost.layers, frame_of([small, large])
        low, high = design(cost.terms, features_of(self.cost.shape, both))
        layers = self.model.moe_layers / self.cost.layer_scale
        slope = (high - low) / (large.union - small.union) / layers
        error_us = self.layers_noise_us(slope[None])[0]
        return float(slope @ cost.us_per_unit), float(error_us)


def fit_run(store: Store) -> Fitted:
    """Fit the samples of a run.

    Raises:
        DataError: the folder holds no sweep, or too few cells.
    """
    header, frame = store.header(), store.frame()
    check_header(header, str(store.header_path))
    routed = (frame["part"] == "layers") & (frame["split"] == "natural")
    possible = frame["observed_union"].between(1.0, header.model.moe.num_experts)
    frame = frame[~routed | possible | (frame["status"] != OK)]
    grid = make_grid(header.sweep, header.model)
    samples = Samples(frame)
    _check_cells(store.folder, header, grid.anchor, samples)
    capture_sizes = tuple(sorted({*header.opened["capture_sizes"]}))
    points, _ = split_points(samples.cells, grid, capture_sizes)
    cost = fit_cost(points, header.model, int(header.fingerprint["layers"]))
    origin = provenance_of(header, samples, len(points))
    return Fitted(header.model, capture_sizes, origin, samples, cost, store.clocks())


def fitted_of_table(table_path: Path) -> tuple[Fitted, CostTable]:
    """Rebuild what a table was made from; the cost is the table's own, not a refit."""
    table = CostTable.load(table_path)
    frame = pd.read_parquet(samples_of(table_path, table.provenance.samples_sha256))
    capture_sizes = table.axes.capture_sizes
    samples = Samples(frame)
    return Fitted(
        table.model, capture_sizes, table.provenance, samples, table.cost
    ), table


def _check_cells(folder: Path, header: Header, anchor: Cell, samples: Samples) -> None:
    measured = set(cells_of(samples.timed))
    if lacks := too_few(measured, header.sweep.whole):
        why = samples.frame.loc[samples.frame["status"] == "mismatch", "reason"]
        wrong = f" ({len(why)} samples left out: {why.iloc[0]})" if len(why) else ""
        raise DataError(
            f"{folder}: holds {lacks}{wrong}; run the same sweep again if it was not "
            "finished, else add widths or unions to its grid"
        )
    if anchor not in measured:
        raise DataError(
            f"{folder}: its anchor ({anchor}) was never measured, so drift is "
            "unknown; see its reason in the parts, fix it, and sweep anew"
        )

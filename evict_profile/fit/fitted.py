"""A run, fitted: the cost model, its baselines, its intervals and its gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from evict_profile.cells import Cell, with_latency
from evict_profile.config import ModelSpec
from evict_profile.errors import StoreError
from evict_profile.fit.baselines import HeldOut, compare_fits, fit_hinge, held_out
from evict_profile.fit.gates import Evidence, aa_floor, drift_of, judge
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
from evict_profile.pricing import features_at
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.sweep.clocks import Clock
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.plan import FitUncertainty, History, Uncertainty
from evict_profile.sweep.store import Header, Store, history
from evict_profile.table import Gate

FEWEST_LAYER_CELLS, FEWEST_ENDS_CELLS = 8, 3


@dataclass(frozen=True)
class Fitted:
    """Samples of one run and all that is derived from them.

    Attributes:
        clocks: what the runner said of drafting; none where it cannot draft.
    """

    header: Header
    frame: pd.DataFrame
    points: Points
    cost: CostModel
    clocks: tuple[Clock, ...] = ()

    @property
    def layer_points(self) -> Points:
        """The cells that the layers' fit is made of."""
        return self.points.where("layers", FIT_SPLIT)

    @cached_property
    def latencies(self) -> dict[Cell, list[float]]:
        """Latencies of each cell in the order measured."""
        return history(self.frame)

    @cached_property
    def replicates(self) -> list[CostModel]:
        """Bootstrap replicates of the cost model."""
        return bootstrap(self.cost, self.points, self.header.sweep.seed)

    @cached_property
    def held_out(self) -> dict[str, HeldOut]:
        """Held-out predictions of the hinge fit and its baselines."""
        seed = self.header.sweep.seed
        return compare_fits(self.header.model, self.layer_points, seed)

    @cached_property
    def anchor(self) -> Cell:
        """The cell measured in every round."""
        return make_grid(self.header.sweep, self.header.model).anchor

    @property
    def drift(self) -> float:
        """Relative change of latency over the run."""
        return drift_of(self.frame)

    @property
    def floor(self) -> float:
        """The A/A noise floor."""
        return aa_floor(self.latencies)

    @cached_property
    def gates(self) -> tuple[Gate, ...]:
        """Every export gate."""
        evidence = Evidence(
            self.header.model,
            self.cost,
            self.replicates,
            self.points,
            self.held_out["ours"].error,
            self.frame,
            self.header.union_test,
            self.header.opened["bandwidth_gbps"],
            self.drift,
            self.header.sweep.whole,
        )
        return judge(evidence)

    def natural_error(self) -> ErrorSummary | None:
        """Error on naturally routed cells, priced at the union that was observed."""
        measured = self.points.where("layers", "natural")
        if not len(measured):
            return None
        predicted = self.natural_us(measured)
        return summarise_errors(predicted, measured.latency_us)

    def natural_us(self, natural: Points) -> Floats:
        """Price of naturally routed cells at their mean observed union."""
        union = self.observed_union(natural)
        axes = ("tokens", "context", "batch")
        tokens, context, batch = (
            np.array([float(getattr(c, axis)) for c in natural.cells]) for axis in axes
        )
        shape = self.header.model.price_shape
        features = features_at(shape, tokens, union, context, batch)
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
    parts = [cell.part for cell in latencies if cell.split in {FIT_SPLIT, "natural"}]
    forced = sum(cell.split == FIT_SPLIT for cell in latencies)
    fewest_ends = 0 if header.sweep.whole else FEWEST_ENDS_CELLS
    if forced < FEWEST_LAYER_CELLS or parts.count("ends") < fewest_ends:
        raise StoreError(
            f"{store.folder}: holds {forced} forced and {parts.count('ends')} ends "
            f"cells, and a fit needs {FEWEST_LAYER_CELLS} and {fewest_ends}; "
            "run the same sweep again if it was not finished, else add widths or "
            "unions to its grid"
        )
    anchor = make_grid(header.sweep, header.model).anchor
    if anchor not in latencies:
        raise StoreError(
            f"{store.folder}: its anchor ({anchor}) was never measured, so drift is "
            "unknown; see its reason in the parts, mend it, and sweep anew"
        )
    points = points_of(latencies)
    layers = int(header.fingerprint["layers"])
    cost = fit_cost(points, header.model, layers)
    return Fitted(header, frame, points, cost, store.clocks())


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


def _own_us(cost: CostModel, cells: Sequence[Cell]) -> Floats:
    """Latency of each cell's own part; naturally routed cells teach a fit nothing."""
    is_ends = np.array([cell.part == "ends" for cell in cells])
    return np.where(is_ends, cost.ends_us(cells), cost.layers_us(cells))

"""The cost table: one JSON file of verification costs and their intervals.

A table covers exactly one key: model, device, engine and kernels. At a measured (batch,
context) the cost is the staircase; elsewhere inside the domain it is the fit; outside,
it is refused unless asked for with `outside="clamp"`, which adds a caveat.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from evict_profile.acceptance import Acceptance
from evict_profile.config.model import ModelSpec
from evict_profile.cost_model import ForwardCost, HingeCost, padded_tokens
from evict_profile.drafting import Drafting
from evict_profile.errors import ConfigError, DataError
from evict_profile.records import parse, to_mapping
from evict_profile.stats import Floats
from evict_profile.table.activation import ActivationCurve
from evict_profile.table.document import SCHEMA, read_signed
from evict_profile.table.key import COMPOSED, Caveats
from evict_profile.table.parts import Axes, Fit, Gate, Staircase, StepCosts, TermCost
from evict_profile.table.provenance import DATASHEET, Composition, Provenance
from evict_profile.table.store import Stored

Outside = Literal["refuse", "clamp"]
OUTSIDES: tuple[Outside, ...] = get_args(Outside)


class CostTable(Stored, frozen=True, dict=True, eq=False):
    """A cost table. `costs()` and `step_cost_us()` return latencies of a forward.

    Attributes:
        key: ten facts of what was measured; a lookup is exact.
        version: major.minor.patch, counted for each key.
        axes: values measured on each axis, and the captured widths.
        fit: the cost model C(n, U, context, batch), its errors and its domain.
        staircases: cost by tokens in all, for each measured batch and context.
        activation: U(t), activated experts by tokens.
        acceptance: from path probability to acceptance; None where not measured.
        drafting: time of a step beside its forward, in no cost here; None where not
            measured.
        path: the file it was read from; not saved.
        caveats: key differences that the lookup was allowed to ignore; not saved.
    """

    model: ModelSpec
    axes: Axes
    fit: Fit
    staircases: Annotated[tuple[Staircase, ...], Meta(min_length=1)]
    activation: ActivationCurve
    gates: tuple[Gate, ...]
    provenance: Provenance | Composition
    acceptance: Acceptance | None = None
    drafting: Drafting | None = None
    schema: str = SCHEMA
    path: Path = Path()
    caveats: Caveats = ()

    unsaved: ClassVar = ("path", "caveats")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostTable) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    @classmethod
    def load(
        cls, path: Path | str, running: Mapping[str, Any] | None = None, fix: str = ""
    ) -> "CostTable":
        """Read a table; check its schema, its hash, and its key against `running`.

        Raises:
            DataError: the file is unreadable, or a check fails; `fix` is the remedy.
        """
        place = Path(path)
        document, stated = read_signed(place)
        try:
            table = cls.of(document, str(place))
        except DataError as error:  # It is signed, so nobody edited it.
            again = "another version wrote it: fit or import its runs again"
            raise DataError(f"{error}; {again}") from error
        here = to_mapping(table.key) if running is None else running
        if missed := table.key.mismatches(here):
            fix = fix or f"measure this one with: evict-profile sweep {table.key.model}"
            raise DataError(
                f"{place}: is of another engine ({'; '.join(missed)}); {fix}"
            )
        table = replace(table, path=place, caveats=table.own_caveats)
        # The file's own: what later versions know by default would change its name.
        vars(table)["sha256"] = stated
        return table

    def as_of(self, file: "CostTable") -> "CostTable":
        """This table under the hash of a file, to which belongs what is learnt."""
        vars(self)["sha256"] = file.sha256
        return self

    @classmethod
    def of(cls, document: Mapping[str, Any], source: str) -> "CostTable":
        for name in cls.unsaved:
            if name in document:
                raise DataError(f"{source}: unknown key '{name}'; remove it")
        return parse(cls, document, source, DataError)

    @property
    def title(self) -> str:
        key = self.key
        return (
            f"{key.model} on {key.where}, {key.dtype}, {key.engine} "
            f"{key.engine_version}, tp {key.tp}"
        )

    @property
    def own_caveats(self) -> Caveats:
        origin, stored = self.provenance, self.model.checkpoint_dtype
        other = f"weights are published as {stored}; costs are of {self.key.dtype}"
        differs = stored not in ("bfloat16", self.key.dtype) and not self.is_estimated
        caveats = self.model.caveats(origin.without_kernels)
        return (*origin.caveats, *[other] * differs, *caveats)

    @property
    def origin(self) -> str:
        """ "measured", "composed" of public rows, or "datasheet"."""
        if getattr(self.provenance, "clock", "") == DATASHEET:
            return DATASHEET
        return str(self.provenance.__struct_config__.tag)

    @property
    def is_estimated(self) -> bool:
        """Whether no engine was timed whole: kernels were, or a data sheet read."""
        return self.origin in (COMPOSED, DATASHEET)

    @property
    def engine_folder(self) -> str:
        """Of a composed table, more of the key."""
        key = self.key
        if self.origin != COMPOSED:
            return key.engine
        return f"{key.engine}-{key.engine_version}-{key.dtype}-tp{key.tp}-ep{key.ep}"

    @property
    def includes(self) -> tuple[str, ...]:
        return self.staircases[0].includes

    @cached_property
    def cost(self) -> ForwardCost:
        return ForwardCost(
            self.model.cost_shape,
            _hinge_cost(self.fit.layers),
            _hinge_cost(self.fit.non_moe),
            self.fit.layer_scale,
        )

    def step_cost_us(
        self, batch: int, context: float, outside: Outside = "refuse"
    ) -> Floats:
        """The forward of t tokens in all, float64 [T + 1]; see `costs`."""
        return self.costs(batch, context, outside).step_cost_us

    def costs(
        self, batch: int, context: float, outside: Outside = "refuse"
    ) -> StepCosts:
        """The cost of a forward, with its interval and caveats.

        Args:
            batch: requests verified together.
            context: tokens in a request's KV cache, mean over the batch.
            outside: what to do outside the measured domain.

        Raises:
            DataError: outside the domain, and `outside` is "refuse".
            ConfigError: an invalid batch, context or `outside`.
        """
        if outside not in OUTSIDES:
            raise ConfigError(
                f"outside {outside!r} is not one of {', '.join(OUTSIDES)}"
            )
        if not (1 <= batch < math.inf and 0 <= context < math.inf):
            raise ConfigError(
                f"batch {batch} at context {context} cannot be; give a batch of at "
                "least 1 and a context of at least 0"
            )
        ends = self.fit.domain["batch"]
        covered_batch, of_batch = self._inside("batch", batch, ends, outside)
        ends = self.contexts(covered_batch)
        covered_context, of_context = self._inside("context", context, ends, outside)
        place = covered_batch, covered_context
        measured = self._measured.get((batch, covered_context))
        step = measured.costs if measured else self._fitted(batch, *place)
        return step._replace(caveats=self.caveats + of_batch + of_context)

    def within_budget(self, experts: int) -> "CostTable":
        """The same engine where no layer activates more experts: C(n, min(U, B))."""
        capped = self.activation.capped(experts)
        return replace(self, activation=capped).read_anew()

    @cached_property
    def unpadded(self) -> "CostTable":
        """The same engine without the padding to captured widths."""
        if not self.axes.capture_sizes:
            return self
        return replace(self, axes=replace(self.axes, capture_sizes=())).read_anew()

    def read_anew(self) -> "CostTable":
        def stairs(each: Staircase) -> Staircase:
            fitted = self._fitted(each.batch, each.batch, each.context)
            low, cost, high = (
                tuple(us.tolist())
                for us in (fitted.low_us, fitted.step_cost_us, fitted.high_us)
            )
            return replace(each, step_cost_us=cost, low_us=low, high_us=high)

        return replace(self, staircases=tuple(map(stairs, self.staircases)))

    def max_tokens(self, batch: int) -> int:
        """The most tokens that are covered for a batch at any context: T."""
        widest = min((self.fit.domain["width"][1], *self.axes.capture_sizes[-1:]))
        widths = (len(s.step_cost_us) - 1 for s in self.staircases if s.batch == batch)
        return min(self.fit.domain["tokens"][1], widest * batch, *widths)

    def contexts(self, batch: float) -> tuple[int, int]:
        least = min(batch, max(stairs.batch for stairs in self.staircases))
        most = max(s.context for s in self.staircases if s.batch >= least)
        return self.fit.domain["context"][0], most

    @property
    def noise(self) -> float:
        return self.provenance.noise

    @property
    def watch_bounds(self) -> tuple[float, float]:
        """Bounds of observed over predicted: median interval, widened by `noise`."""
        low, high = (
            float(np.median(np.concatenate(shares)))
            for shares in (
                [s.costs.low_us / s.costs.step_cost_us for s in self.staircases],
                [s.costs.high_us / s.costs.step_cost_us for s in self.staircases],
            )
        )
        return low - self.noise, high + self.noise

    @cached_property
    def _measured(self) -> dict[tuple[int, float], Staircase]:
        return {(s.batch, s.context): s for s in self.staircases}

    def _inside(
        self, axis: str, value: float, ends: tuple[int, int], outside: Outside
    ) -> tuple[float, Caveats]:
        least, most = ends
        if least <= value <= most:
            return value, ()
        if outside == "refuse":
            measure = "" if self.origin == COMPOSED else "measure it, "
            raise DataError(
                f"{self.path}: {axis} {value:.9g} is outside the table's "
                f"{least}..{most}; choose one inside, {measure}or take the nearest "
                "with --outside clamp (in Python outside='clamp')"
            )
        nearest = min(max(value, least), most)
        beyond = "what lies beyond is in no cost and no interval"
        return nearest, (f"{axis} {value:g} read as {nearest:g}: {beyond}",)

    def _fitted(self, batch: int, covered_batch: float, context: float) -> StepCosts:
        counts = np.arange(self.max_tokens(batch) + 1)
        tokens = padded_tokens(counts, batch, self.axes.capture_sizes)
        union = self.activation.at(tokens, batch)
        cost = self.cost.latency_us(tokens, union, context, covered_batch)
        near = self._nearest(covered_batch, context)
        place = np.minimum(counts, len(near.step_cost_us) - 1)
        low, high = (
            cost * (bound[place] / near.step_cost_us[place])
            for bound in (near.low_us, near.high_us)
        )
        return StepCosts.of(cost, low, high)

    def _nearest(self, batch: float, context: float) -> StepCosts:
        def far(stairs: Staircase) -> float:
            ratios = [stairs.batch / batch, (stairs.context + 1.0) / (context + 1.0)]
            return float(np.abs(np.log(ratios)).sum())

        return min(self.staircases, key=far).costs


def _hinge_cost(terms: tuple[TermCost, ...]) -> HingeCost:
    return HingeCost(
        tuple(cost.term for cost in terms), np.array([t.us_per_unit for t in terms])
    )

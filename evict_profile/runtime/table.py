"""A cost table as a serving process reads it: checked, keyed, priced.

A table prices one engine on one device. It is loaded only where its schema and hash
hold, and, given what is running, only where every field of its key agrees. At the
measured (batch, context) the step cost is the table's staircase; elsewhere inside the
measured domain the fit prices it; outside, nothing is known, and a price must be
asked for explicitly and carries a mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from evict_profile.errors import PlanError, TableError
from evict_profile.pricing import (
    Floats,
    ForwardCost,
    RampCost,
    Shape,
    Term,
    grown_union,
    padded_tokens,
)
from evict_profile.runtime.calibration import Calibration
from evict_profile.runtime.checks import number, one_of
from evict_profile.runtime.drafting import Drafting, drafting_of
from evict_profile.runtime.links import LinkCurves
from evict_profile.signed import differences, read_signed

KEY = (
    "gpu",
    "model",
    "dtype",
    "tp",
    "ep",
    "engine",
    "engine_version",
    "attention_backend",
    "moe_backend",
    "graph_mode",
)
"""What a table prices; a lookup is exact on every one of them."""

Outside = Literal["refuse", "clamp"]
OUTSIDES: tuple[Outside, ...] = get_args(Outside)


@dataclass(frozen=True)
class Price:
    """Step costs at one batch and context, each float64 [T + 1], in microseconds.

    The arrays cannot be written: they are the table's own.

    Index t is the tokens verified in all; entries below the batch repeat the entry at
    the batch. Low and high bound the 90 % interval; where the fit priced, they are as
    wide, relatively, as at the nearest measured place. `marks` says what was clamped.
    """

    step_cost_us: Floats
    low_us: Floats
    high_us: Floats
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class CostTable:
    """What the runtime needs of a cost table.

    Attributes:
        path: the file.
        sha256: the hash that it is signed with.
        key: what it prices, by the names in `KEY`.
        includes: parts of a step that its costs hold, such as "verify".
        domain: least and largest measured value of each axis.
        ladder: verify widths with captured graphs; costs are read at the next one.
        prices: staircases at the measured (batch, context).
        cost: the fit, which prices the places between.
        union_growth: U(t), mean distinct experts a layer when t tokens run.
        noise: relative difference that two measurements of one cell may have.
        growth_by_batch: U(t) of the batches that were measured on a workload.
        acceptance: from path probability to acceptance; None where not measured.
        drafting: time of a step beside verification; None where not measured.
        workload: what acceptance was learnt on; empty where it was not. The key says
            nothing of it, and what was learnt at temperature 0 is wrong at another.
        marks: what a lookup had to overlook, if it was told to.
    """

    path: Path
    sha256: str
    key: Mapping[str, Any]
    includes: tuple[str, ...]
    domain: Mapping[str, tuple[int, int]]
    ladder: tuple[int, ...]
    prices: Mapping[tuple[int, int], Price]
    cost: ForwardCost
    union_growth: Floats
    noise: float
    growth_by_batch: Mapping[int, Floats] = field(default_factory=dict)
    acceptance: Calibration | None = None
    drafting: Drafting | None = None
    workload: str = ""
    marks: tuple[str, ...] = ()

    @property
    def spread(self) -> tuple[float, float]:
        """Where a cost may lie while the table holds, as shares of it: low, high.

        The median 90 % interval of its costs, widened by the noise between two
        measurements of one cell.
        """

        def share(bound: str) -> float:
            prices = self.prices.values()
            shares = [getattr(price, bound) / price.step_cost_us for price in prices]
            return float(np.median(np.concatenate(shares)))

        return share("low_us") - self.noise, share("high_us") + self.noise

    @classmethod
    def load(
        cls,
        path: Path | str,
        running: Mapping[str, Any] | None = None,
        allow_nearest: bool = False,
    ) -> "CostTable":
        """Read a table; check its schema, its hash, and its key against what runs.

        Args:
            path: the JSON file.
            running: the key of the engine that will use it; None checks no key.
            allow_nearest: take a table of another key, and mark every plan with it.

        Raises:
            TableError: unreadable, another schema, a hash that does not match, a
                missing field, or a key that differs.
        """
        place = Path(path)
        document, sha256 = read_signed(place)
        try:
            marks = () if running is None else key_misses(running, document["key"])
            if marks and not allow_nearest:
                raise TableError(
                    f"{place}: prices another engine ({'; '.join(marks)}); measure "
                    f"this one with: evict-profile profile --model "
                    f"{document['key']['model']}"
                )
            return cls(path=place, sha256=sha256, marks=marks, **_fields(document))
        except (KeyError, TypeError, ValueError, IndexError, PlanError) as error:
            raise TableError(
                f"{place}: is signed but no whole cost table ({error!r}); "
                "export it again"
            ) from error

    def step_cost_us(
        self, batch: int, context: float, outside: Outside = "refuse"
    ) -> Floats:
        """Step cost when t tokens are verified in all, float64 [T + 1].

        Args:
            batch: requests verified together.
            context: tokens in a request's KV cache, mean over the batch.
            outside: what to do outside the measured domain.

        Raises:
            TableError: outside the domain, and `outside` is "refuse".
            PlanError: a batch, a context or a word that is none.
        """
        return self.price(batch, context, outside).step_cost_us

    def price(self, batch: int, context: float, outside: Outside = "refuse") -> Price:
        """The step cost with its interval and marks; see `step_cost_us`."""
        one_of("outside", outside, OUTSIDES)
        number("batch", batch, least=1.0)
        number("context", context)
        known_batch, batch_marks = self._inside("batch", batch, outside)
        known_context, context_marks = self._inside("context", context, outside)
        marks = self.marks + batch_marks + context_marks
        measured = self.prices.get((batch, int(known_context)))
        if measured and known_context == int(known_context):
            return replace(measured, marks=marks)
        return self._fitted(batch, known_batch, known_context, marks)

    def within_budget(self, experts: int) -> "CostTable":
        """The same engine where no layer wakes more experts: C(n, min(U, B)).

        Its prices are the fit's everywhere, since unions that large were measured for
        other widths than the ones that now wake them.
        """
        capped = replace(
            self,
            union_growth=np.minimum(self.union_growth, experts),
            growth_by_batch={
                batch: np.minimum(union, experts)
                for batch, union in self.growth_by_batch.items()
            },
        )
        prices = {
            (batch, context): capped._fitted(batch, batch, context, ())
            for batch, context in self.prices
        }
        return replace(capped, prices=prices)

    def most_tokens(self, batch: int) -> int:
        """The most tokens that are priced for a batch: T."""
        widest = min((self.domain["width"][1], *self.ladder[-1:]))
        return min(self.domain["tokens"][1], widest * batch)

    def _inside(
        self, axis: str, value: float, outside: Outside
    ) -> tuple[float, tuple[str, ...]]:
        least, most = self.domain[axis]
        if least <= value <= most:
            return value, ()
        if outside == "refuse":
            raise TableError(
                f"{self.path}: {axis} {value:g} is outside what was measured, "
                f"{least}..{most}; measure it, or say outside='clamp'"
            )
        nearest = min(max(value, least), most)
        return nearest, (f"{axis} {value:g} priced as {nearest:g}",)

    def _fitted(
        self, batch: int, priced_batch: float, context: float, marks: tuple[str, ...]
    ) -> Price:
        asked = np.arange(self.most_tokens(batch) + 1)
        tokens = padded_tokens(asked, batch, self.ladder)
        union = grown_union(tokens, batch, self.union_growth, self.growth_by_batch)
        cost = self.cost.step_cost_us(tokens, union, priced_batch, context)
        near = self._nearest(priced_batch, context)
        place = np.minimum(asked, len(near.step_cost_us) - 1)
        low, high = (
            cost * (bound[place] / near.step_cost_us[place])
            for bound in (near.low_us, near.high_us)
        )
        cost, low, high = map(_read_only, (cost, low, high))
        return Price(cost, low, high, marks)

    def _nearest(self, batch: float, context: float) -> Price:
        def far(place: tuple[int, int]) -> float:
            ratios = np.array([place[0] / batch, (place[1] + 1.0) / (context + 1.0)])
            return float(np.abs(np.log(ratios)).sum())

        return self.prices[min(self.prices, key=far)]


def key_misses(running: Mapping[str, Any], key: Mapping[str, Any]) -> tuple[str, ...]:
    """How what runs differs from a table's key; other facts of it do not matter."""
    here = {name: running[name] for name in key if name in running}
    return tuple(differences(here, key))


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    fit, made = document["fit"], document["provenance"]
    stairs, growth = document["staircases"], document["union_growth"]
    acceptance, drafting = document.get("acceptance"), document.get("drafting")
    return {
        "key": {name: document["key"][name] for name in KEY},
        "includes": tuple(stairs[0]["includes"]),
        "domain": {axis: (low, high) for axis, (low, high) in fit["domain"].items()},
        "ladder": tuple(document["axes"]["ladder"]),
        "prices": {(s["batch"], s["context"]): _price_of(s) for s in stairs},
        "cost": ForwardCost(
            _shape_of(document["model"]),
            _ramps_of(fit["layers"]),
            _ramps_of(fit["ends"]),
            fit["layer_scale"],
        ),
        "union_growth": np.array(growth["union"]),
        "noise": made["aa_floor"] + abs(made["drift"]),
        "growth_by_batch": {
            each["batch"]: np.array(each["union"])
            for each in growth.get("by_batch", ())
        },
        "acceptance": _calibration_of(acceptance) if acceptance else None,
        "workload": acceptance["workload"] if acceptance else "",
        "drafting": drafting_of(drafting) if drafting else None,
    }


def _calibration_of(acceptance: Mapping[str, Any]) -> Calibration:
    links = acceptance.get("links")
    return Calibration(
        tuple(acceptance["scores"]),
        tuple(map(tuple, acceptance["acceptances"])),
        tuple(acceptance["continuation"]),
        LinkCurves(tuple(links["scores"]), tuple(map(tuple, links["acceptances"])))
        if links
        else None,
    )


def _price_of(stairs: Mapping[str, Any]) -> Price:
    cost, low, high = (
        _read_only(np.array(stairs[name], dtype=np.float64))
        for name in ("step_cost_us", "low_us", "high_us")
    )
    return Price(cost, low, high)


def _read_only(values: Floats) -> Floats:
    values.flags.writeable = False
    return values


def _shape_of(model: Mapping[str, Any]) -> Shape:
    attention = model["attention"]
    return Shape(
        model["moe"]["top_k"], attention["sliding_window"], attention["sliding_every"]
    )


def _ramps_of(terms: Sequence[Mapping[str, Any]]) -> RampCost:
    ramps = tuple(
        Term(t["feature"], t["low"], np.inf if t["high"] is None else t["high"])
        for t in terms
    )
    return RampCost(ramps, np.array([t["us_per_unit"] for t in terms]))

"""The served table: what runs of one server support, and nothing else.

At a served batch and K the ratio of steps is the runs'. Another K follows the growth of
a step in its width, from one K (`growth.OWN_EXPONENT`) or through two, with the error
of other servers; a `shape` of a cost table replaces the exponent. With one K, the time
that drafting takes once a step is not known: a smaller K lies between the straight line
to the plain step and no change at all. Another batch lies between its served
neighbours at constant K, or `growth.BATCH_ERROR` beyond them. Further out nothing is
known, unless plain decoding ran there: then a draft has the ratio of the nearest served
batch, with an error that grows with the distance (`growth.FAR_ERROR`).
"""

import math
import shlex
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, field

from evict_profile.errors import DataError
from evict_profile.records import Count, Positive, parse, replace
from evict_profile.served.growth import (
    BATCH_ERROR,
    BETWEEN_ERROR,
    FAR_ERROR,
    OWN_ERROR,
    OWN_EXPONENT,
    Basis,
    StepRatio,
    around,
    log_half_width,
    unserved,
)
from evict_profile.served.run import Run
from evict_profile.served.setting import Setting, near_context, settings_of
from evict_profile.stats import Estimate
from evict_profile.table.document import read_signed
from evict_profile.table.store import Stored

SCHEMA = "evict-served-table/1"
SERVED, NOT_STATED = "served", "not stated"
"""In a served table's key: its graph mode, and a fact that no run states."""
SAME = Estimate(1.0, 1.0, 1.0)


class Shape(Struct, frozen=True):
    """A cost table's forward over plain decoding, at its batches and widths."""

    table: str
    batches: tuple[Count, ...]
    widths: tuple[Count, ...]
    growth: tuple[tuple[Positive, ...], ...]

    def at(self, batch: int, width: int) -> float:
        """At the nearest of its batches; linear between its widths."""
        near = min(self.batches, key=lambda each: abs(math.log(each / batch)))
        row = self.growth[self.batches.index(near)]
        for (n, r), (m, s) in pairwise(zip(self.widths, row, strict=True)):
            if n <= width <= m:
                return r + (s - r) * (width - n) / (m - n)
        return float(row[-1] * (width / self.widths[-1]) ** OWN_EXPONENT)


class ServedTable(Stored, frozen=True, dict=True, eq=False):
    """Runs of one server, and the step ratios that they support.

    Attributes:
        key: what was served; "not stated" where the runs do not say.
        version: major.minor.patch, counted for each key.
        runs: those with a step and without a fault.
        left_out: why other runs were left out, by source.
        shape: growth in the width by a cost table; None is the power law.
    """

    runs: tuple[Run, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    shape: Shape | None = None
    schema: str = SCHEMA
    path: Path = Path()

    @classmethod
    def load(cls, path: Path | str) -> "ServedTable":
        """Read a served table; check its schema and its hash.

        Raises:
            DataError: unreadable, another schema, a wrong hash or a wrong field.
        """
        place = Path(path)
        document, _ = read_signed(place, SCHEMA)
        return replace(parse(cls, document, str(place), DataError), path=place)

    @property
    def tp(self) -> int | None:
        """The number of GPUs; None where no run states it."""
        stated = (run.deployment.tp for run in self.runs)
        return next(filter(None, stated), None)

    @property
    def title(self) -> str:
        """What was served, without the facts that no run states."""
        key = self.key
        facts = (f"{key.engine} {key.engine_version}", key.dtype)
        known = [fact.replace(NOT_STATED, "").strip() for fact in facts]
        known += [f"tp {self.tp}"] if self.tp else []
        return ", ".join([f"{key.model} on {key.gpu}", *filter(None, known)])

    @property
    def engine_folder(self) -> str:
        return f"{self.key.engine}-{SERVED}"

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        return settings_of(self.runs)

    @cached_property
    def contexts(self) -> tuple[float, ...]:
        """The contexts that runs state, the smallest first; () if none does."""
        found = list[float]()
        for context in sorted(s.context for s in self.settings if s.context):
            if not (found and near_context(context, found[-1])):
                found.append(context)
        return tuple(found)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The texts that runs state, sorted; () if none does."""
        return tuple(sorted({run.text for run in self.runs} - {""}))

    def of_text(self, text: str) -> "ServedTable":
        """The runs of a text, and those that state none."""
        return replace(self, runs=tuple(r for r in self.runs if r.text in (text, "")))

    def has_same(self, other: "ServedTable") -> bool:
        """Whether another has the same runs, from whatever files, and one shape."""
        both = self.runs, other.runs
        one, two = ([replace(run, source="") for run in runs] for runs in both)
        is_other = len(one) != len(two) or any(run not in two for run in one)
        return not is_other and self.shape == other.shape

    def batches(self, context: float | None = None) -> tuple[int, ...]:
        """Served batches at which a draft can be compared: two settings or more."""
        own = self._at_context(context)
        return tuple(batch for batch, found in own.items() if len(found) > 1)

    def is_plain(self, batch: int, context: float | None = None) -> bool:
        """Whether plain decoding ran at a batch, and nothing beside it."""
        return [each.width for each in self.served_at(batch, context)] == [1]

    def served_at(self, batch: int, context: float | None = None) -> list[Setting]:
        """The settings of a served batch, the narrowest first; [] of another."""
        return self._at_context(context).get(batch, [])

    def reference(self, batch: int, context: float | None = None) -> Setting:
        """What ratios at a batch are over: plain decoding, else the smallest K.

        Between two batches it is the K that both served.
        """
        first, *others = self._near(batch, context)
        if not others:
            return self.served_at(first, context)[0]
        one, two = (self.served_at(each, context) for each in (first, *others))
        both = {each.width for each in two}
        if found := next((each for each in one if each.width in both), None):
            return found
        raise DataError(
            f"batch {batch} was not served, and batches {first} and {others[0]} share "
            f"no K; serve batch {batch}"
        )

    def ratio(
        self, batch: int, width: int, levels: int, context: float | None = None
    ) -> StepRatio:
        """A step over the reference's, with its 95 % interval and what it rests on.

        Args:
            batch: requests that decode together.
            width: tokens that each verifies, its root included.
            levels: drafted one after another; 0 decodes plainly.
            context: tokens in a request's KV cache; None is the smallest that ran.

        Raises:
            DataError: a batch or a context that no run supports.
        """
        reference = self.reference(batch, context)
        near = self._near(batch, context)
        place = width, levels, reference
        found = [self._served(each, *place, context) for each in near]
        if len(found) == 1 or width == reference.width:
            return _at_distance(found[0], math.log(batch / near[0]))
        ends = [_as_neighbour(ratio.value) for ratio in found]
        share = math.log(batch / near[0]) / math.log(near[1] / near[0])
        logs = [math.log(each.value) for each in ends]
        value = math.exp(logs[0] + share * (logs[1] - logs[0]))
        low, high = min(each.low for each in ends), max(each.high for each in ends)
        ran = all(each.basis == "measured" for each in found)
        basis: Basis = "other batch" if ran else "other K"
        return StepRatio(Estimate(value, low, high), basis)

    def reference_us(self, batch: int, context: float | None = None) -> float | None:
        """The reference's step in microseconds; None where it did not run."""
        width = self.reference(batch, context).width
        own = (s for s in self.served_at(batch, context) if s.width == width)
        return next((each.step_us.value for each in own), None)

    def _at_context(self, context: float | None) -> Mapping[int, list[Setting]]:
        """Settings by batch, of the context that a place has."""
        chosen = self._context(context)
        found: dict[int, list[Setting]] = {}
        for each in self.settings:
            if near_context(each.context, chosen):
                found.setdefault(each.batch, []).append(each)
        return dict(sorted(found.items()))

    def _context(self, context: float | None) -> float | None:
        if not self.contexts:
            return None
        if context is None:
            return self.contexts[0]
        near = min(
            self.contexts, key=lambda each: abs(math.log(each / max(context, 1)))
        )
        if near_context(near, max(context, 1.0)):
            return near
        known = ", ".join(f"{each:.0f}" for each in self.contexts)
        raise DataError(
            f"{self.path}: context {context:.0f} was not served; there are runs at "
            f"{known} tokens; serve prompts of that length, or choose one of these"
        )

    def _near(self, batch: int, context: float | None) -> tuple[int, ...]:
        """The batch itself if it was served, else its neighbours.

        Beyond them it is the nearest one, if plain decoding ran at the batch.
        """
        known = self.batches(context)
        below = [each for each in known if each < batch]
        above = [each for each in known if each > batch]
        if batch in known:
            return (batch,)
        if below and above:
            return below[-1], above[0]
        if self.is_plain(batch, context):
            return (*below[-1:], *above[:1]) or (batch,)
        had = ", ".join(map(str, known)) or "no batch with two settings"
        raise DataError(
            f"{self.path}: batch {batch} was not served, and nothing is known beyond "
            f"what was ({had}); serve plain decoding and one K at batch {batch}, or "
            "take the file of an estimate that covers it: evict-profile show "
            f"{shlex.join(('--model', self.key.model, '--gpu', self.key.gpu))}"
        )

    def _served(
        self,
        batch: int,
        width: int,
        levels: int,
        reference: Setting,
        context: float | None,
    ) -> StepRatio:
        """The ratio at a served batch; what did not run is carried from chains."""
        drafted = [each for each in self.served_at(batch, context) if each.drafts]
        own = self.served_at(batch, context)
        base = next(each for each in own if each.width == reference.width)
        if (width, levels) == (base.width, base.levels):
            return StepRatio(SAME, "measured")
        for each in drafted:
            if (each.width, each.levels) == (width, levels):
                return StepRatio(_over(each, base), "measured")
        if width == 1:
            raise DataError(f"{self.path}: batch {batch} has no run of plain decoding")
        known = {each.width: _over(each, base) for each in drafted if each.is_chain}
        if known and width == levels + 1:
            found = self._from_others(batch, width, base.width, known)
            return StepRatio(_raised(found) if base.width == 1 else found, "other K")
        if drafted:
            raise DataError(
                f"{self.path}: trees ran at batch {batch}, and a tree's step says "
                "little of another's or of a chain's; serve what is asked for"
            )
        return unserved(width)

    def _from_others(
        self, batch: int, width: int, reference: int, known: Mapping[int, Estimate]
    ) -> Estimate:
        """From the nearest K, by the law through two of them or of other servers."""
        pair = _nearest(width, known)
        n = min(pair, key=lambda each: abs(math.log(each / width)))
        ratio, error = known[n], OWN_ERROR
        if len(pair) == 2:
            (least, one), (most, other) = ((each, known[each]) for each in pair)
            slope = math.log(other.value / one.value) / math.log(most / least)
            value = ratio.value * (width / n) ** max(slope, 0.0)
            error = BETWEEN_ERROR if least < width < most else OWN_ERROR
        else:
            value = self._scaled(batch, width, n, ratio)
        found = around(value, math.hypot(log_half_width(ratio), error))
        if len(pair) == 2 or reference > 1 or width > n:
            return found
        # The start of drafting is unknown: from a straight line to no change at all.
        line = 1.0 + (ratio.low - 1.0) * (width - 1) / (n - 1)
        return Estimate(value, min(found.low, line), max(found.high, ratio.high))

    def _scaled(self, batch: int, width: int, n: int, ratio: Estimate) -> float:
        if self.shape is None:
            return float(ratio.value * (width / n) ** OWN_EXPONENT)
        grown, known = (self.shape.at(batch, each) - 1.0 for each in (width, n))
        if known <= 0.0:
            return ratio.value
        return 1.0 + (ratio.value - 1.0) * grown / known


def _nearest(width: int, known: Mapping[int, Estimate]) -> list[int]:
    """The two known widths that a width lies between, else the nearest; sorted."""
    below, above = (
        [n for n in sorted(known) if (n > width) == side] for side in (0, 1)
    )
    if below and above:
        return [below[-1], above[0]]
    return below[-2:] or above[:2]


def _as_neighbour(ratio: Estimate) -> Estimate:
    """A ratio as it bounds that of a batch beside it."""
    least = around(ratio.value, BATCH_ERROR)
    return Estimate(ratio.value, min(ratio.low, least.low), max(ratio.high, least.high))


def _at_distance(ratio: StepRatio, distance: float) -> StepRatio:
    """A ratio as it stands for that of a batch `distance` away, in logs."""
    if not distance or ratio.value is SAME:
        return ratio
    error = FAR_ERROR * math.sqrt(abs(distance))
    found = around(ratio.value.value, math.hypot(log_half_width(ratio.value), error))
    basis: Basis = "other batch" if ratio.basis == "measured" else ratio.basis
    return StepRatio(found, basis)


def _over(each: Setting, base: Setting) -> Estimate:
    """A setting's step over the reference's."""
    return SAME if each is base else each.ratio_to(base)


def _raised(ratio: Estimate) -> Estimate:
    """At least 1: a step that did not run is not predicted below plain decoding."""
    return Estimate(max(ratio.value, 1.0), ratio.low, max(ratio.high, 1.0))

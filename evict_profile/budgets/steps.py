"""A budget recording's rows as flat arrays, checked once, so that nothing later need
doubt."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from evict_profile.budgets.schema import COLUMNS
from evict_profile.budgets.settings import Setting
from evict_profile.errors import TraceError
from evict_profile.stats import Bools, Floats, Ints

LISTS = ("kl", "agrees", "loss", "plain_loss")
SLACK = 1e-6
"""Of unions, which are means over layers."""
ROUNDING = 1e-3
"""Nats by which rounding may push a divergence or a loss below nothing."""

Prompt = tuple[str, int]
"""Workload and number."""


@dataclass(frozen=True, eq=False)
class Steps:
    """One entry a step in every array.

    Attributes:
        setting: int64, place among the recording's settings.
        prompt: int64, place among the recording's prompts.
        given: bool, the text was forced, not decoded.
        context, verified, committed: int64, tokens.
        union: float64, distinct experts, mean over layers.
        kl, agrees, loss, plain_loss: float64, summed over the tokens committed.
    """

    setting: Ints
    prompt: Ints
    given: Bools
    context: Ints
    verified: Ints
    committed: Ints
    union: Floats
    kl: Floats
    agrees: Floats
    loss: Floats
    plain_loss: Floats

    def take(self, kept: Bools) -> "Steps":
        """Only these steps."""
        arrays = {each.name: getattr(self, each.name)[kept] for each in fields(self)}
        return Steps(**arrays)


class Rows:
    """The rows of one table.

    Raises:
        TraceError: a column is missing or of another type, or a row holds what no step
            can; the message names the first such row.
    """

    def __init__(
        self,
        table: pa.Table,
        settings: Sequence[Setting],
        experts: int,
        source: str,
    ) -> None:
        self.table, self.settings, self.experts = table, settings, experts
        self.source = source
        if missing := [n for n in COLUMNS.names if n not in table.column_names]:
            names = ", ".join(missing)
            self.refuse(f"has no column {names}; see docs/how-to/budgets.md")
        if not len(table):
            self.refuse("holds no steps; record at least one")
        self._known = {name: self._values(name) for name in COLUMNS.names[:10]}
        self._check_numbers()

    def steps(self) -> tuple[Steps, tuple[Prompt, ...]]:
        """All steps, and the prompts that they count."""
        known = self._known
        pairs = list(zip(known["workload"], known["prompt"].tolist(), strict=True))
        prompts = tuple(sorted(set(pairs)))
        place = {prompt: number for number, prompt in enumerate(prompts)}
        steps = Steps(
            setting=self._settings(),
            prompt=np.array([place[pair] for pair in pairs]),
            given=known["given"],
            context=known["context"],
            verified=known["verified"],
            committed=known["committed"],
            union=known["union"],
            **{name: self._summed(name) for name in LISTS},
        )
        self._check_unions(steps)
        self._check_doubles(steps)
        return steps, prompts

    def refuse(self, reason: str) -> NoReturn:
        """Raise with the source named."""
        raise TraceError(f"{self.source}: {reason}")

    def refuse_rows(self, bad: Bools, reason: str) -> None:
        """Raise if any row is bad, naming the first."""
        if bad.any():
            row = int(np.argmax(bad))
            names = ("rule", "budget", "workload")
            rule, budget, workload = (self._known[name][row] for name in names)
            place = f"{rule} {budget}, {workload}, prompt {self._known['prompt'][row]}"
            self.refuse(f"row {row} ({place}): {reason}")

    def _values(self, name: str) -> NDArray[Any]:
        return np.asarray(self._column(name).to_numpy(zero_copy_only=False))

    def _summed(self, name: str) -> Floats:
        """A list column as one sum a row, float64 [rows]."""
        column = self._column(name)
        committed = self._known["committed"]
        self.refuse_rows(
            pc.list_value_length(column).to_numpy() != committed,
            f"{name} must have one entry a committed token",
        )
        flat = column.flatten()
        if flat.null_count:
            self.refuse(f"column {name} has nulls within its lists; fill them")
        values = flat.to_numpy(zero_copy_only=False).astype(np.float64)
        begins = np.cumsum(committed) - committed
        bad = ~np.isfinite(values) | (values < -ROUNDING)
        self.refuse_rows(
            np.logical_or.reduceat(bad, begins), f"{name} must be finite and at least 0"
        )
        sums: Floats = np.add.reduceat(values, begins)
        return sums

    def _settings(self) -> Ints:
        """Each row's place among the settings, int64 [rows]."""
        place = {(s.rule, s.budget): i for i, s in enumerate(self.settings)}
        rules, budgets = self._known["rule"], self._known["budget"].tolist()
        found = [place.get(key, -1) for key in zip(rules, budgets, strict=True)]
        setting = np.array(found)
        self.refuse_rows(
            setting < 0,
            "the metadata's settings have no such rule and budget; add it to them",
        )
        return setting

    def _check_numbers(self) -> None:
        known = self._known
        for name, least in (("position", 0), ("context", 0), ("committed", 1)):
            self.refuse_rows(known[name] < least, f"{name} must be at least {least}")
        self.refuse_rows(
            known["verified"] < known["committed"],
            "verified must be at least committed: what is committed was verified, and "
            "the root counts",
        )

    def _check_unions(self, steps: Steps) -> None:
        union = steps.union
        # Not `union > experts`: that lets nan through.
        self.refuse_rows(
            ~((union >= 0.0) & (union <= self.experts + SLACK)),
            f"union must be within 0 and the model's {self.experts} experts",
        )
        allowed = np.array([np.mean(each.per_layer) for each in self.settings])
        self.refuse_rows(
            union > allowed[steps.setting] + SLACK,
            "union is more than the budget allows; it counts experts that ran",
        )

    def _check_doubles(self, steps: Steps) -> None:
        keys = (steps.setting, steps.prompt, steps.given, self._known["position"])
        _, first = np.unique(np.stack(keys), axis=1, return_index=True)
        again = np.ones(len(steps.setting), bool)
        again[first] = False
        self.refuse_rows(again, "this position of this text is there twice")

    def _column(self, name: str) -> pa.Array:
        given, kind = self.table.column(name), COLUMNS.field(name).type
        try:
            column = given.cast(kind).combine_chunks()
        except pa.ArrowException as error:
            self.refuse(
                f"column {name} holds {given.type} where {kind} is due ({error})"
            )
        if column.null_count:
            self.refuse(f"column {name} has nulls; fill them")
        return column

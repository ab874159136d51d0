"""Judge MoE-Spec's claims on recordings of the small world under expert budgets.

    python -m benchmarks.claims.moe_spec [--recordings runs/results]

It reads `budgets` (rules that a server can run) and `budget-yardsticks` (rules that
need other text or hindsight), and writes a CSV a table. `make results` records first.
Speed is expected: tokens a step as recorded, at the step costs of the shipped table
with the routing that the recording timed. Intervals resample prompts, except those of
routing, which are of medians over forwards.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.claims.routing_overhead import measure_overheads, of_served_shape
from benchmarks.common import command, restart_on_one_thread
from evict_profile.errors import DataError
from evict_profile.io import data_root, make_folder, write_text
from evict_profile.stats import Estimate, Floats
from evict_profile.table import CostTable
from evict_profile.traces.load import Part
from evict_profile.traces.schema import metadata_of, read
from examples.small_world.budget_front import SettingSums, timed_steps
from examples.small_world.engine.budget_rivals import (
    LAYERS,
    ORACLE,
    RIVALS,
    STATIC,
    TRUNCATION,
)
from examples.small_world.engine.budgets import MASS, NONE, RULES, SQRT_TOP_K
from examples.small_world.plans import BUDGET_SCHEMA

PARTS = ("budgets", "budget-yardsticks")
WORLD = data_root() / "examples/small_world/stdlib"
TABLE = (
    data_root() / "examples/small_world/cost_tables/intel-xeon-processor-amx-bf16"
    "/small-world-9.04m/tree-decoding/1.0.3.json"
)
COMPARABLE = 0.98
"""Share of given tokens whose likeliest successor has to stay, at the worse end of its
interval, for a quality to be called comparable. The paper compares task scores."""

PROMPTS = 4
"""Of each text, behind which routers are timed."""

Cells = Iterator[dict[str, str]]


@dataclass(frozen=True)
class Claim:
    """`ours` by budget; `rule` is the one that is judged."""

    claim: str
    paper: str
    rule: str
    ours: Callable[[int], str]

    def cells(self, budgets: Sequence[int]) -> dict[str, str]:
        return {"claim": self.claim, "paper": self.paper, "rule": self.rule} | {
            f"B = {budget}": self.ours(budget) for budget in budgets
        }


class Judged:
    """Settings of some texts of a recording, with the same resamples of prompts."""

    def __init__(self, steps: pd.DataFrame) -> None:
        self.sums = SettingSums(steps)
        self.ratio = self.sums.bootstrap.ratio
        self.estimate = self.sums.bootstrap.estimate
        self.speed = self.sums.speed
        none, *budgets = self.sums.settings
        self.none = self.sums.of(*none)
        self.budgets: dict[str, list[int]] = {}
        for rule, budget in budgets:
            self.budgets.setdefault(rule, []).append(budget)

    def tokens(self, rule: str, budget: int) -> Floats:
        """Tokens a step over those without a budget."""
        own = self.sums.of(rule, budget)
        return _mean(own, "committed") / _mean(self.none, "committed")

    def a_token(
        self, column: str, rule: str, budget: int, given: bool = True
    ) -> Floats:
        """A sum over committed tokens, divided by their number."""
        own = self.sums.of(rule, budget, given)
        return own[column] / own["committed"]

    def divergence(self, rule: str, budget: int, given: bool = True) -> Floats:
        return self.a_token("kl", rule, budget, given)


def _mean(sums: dict[str, Floats], column: str) -> Floats:
    return sums[column] / sums["steps"]


@lru_cache(maxsize=1)
def load(folder: Path) -> pd.DataFrame:
    """The steps of both recordings, those without a budget once."""
    table = CostTable.load(TABLE)
    first, *others = (
        timed_steps(recorded_so_far(folder / part), table).steps for part in PARTS
    )
    rest = [steps[steps["rule"] != NONE] for steps in others]
    return of_all_settings(pd.concat([first, *rest], ignore_index=True))


def recorded_so_far(folder: Path) -> list[Part]:
    """Of a recording that may be in progress; prompts are recorded one by one."""
    tables = {path: read(path) for path in sorted(folder.glob("*.parquet"))}
    if not tables:
        raise DataError(f"{folder}: holds no recording; `make results` makes it")
    return [
        Part(path, table, metadata_of(table, str(path), BUDGET_SCHEMA))
        for path, table in tables.items()
    ]


def of_all_settings(steps: pd.DataFrame) -> pd.DataFrame:
    """Steps of the prompts that every setting has."""
    setting, prompt = ["rule", "budget", "given"], ["workload", "prompt"]
    has = steps[[*setting, *prompt]].drop_duplicates().groupby(prompt).size()
    wanted = len(steps[setting].drop_duplicates())
    whole = has[has == wanted].index
    return steps[steps.set_index(prompt).index.isin(whole)]


def claims(recordings: Path) -> Cells:
    steps = load(recordings)
    by_text = [Judged(own) for _, own in steps.groupby("workload")]
    mixed = Judged(steps)
    for each in chain(
        speeds(mixed, by_text), qualities(mixed), modes(mixed), hindsight(mixed)
    ):
        yield each.cells(mixed.budgets[MASS])


def speeds(mixed: Judged, by_text: Sequence[Judged]) -> Iterator[Claim]:
    """Of the paper's rule and ours."""
    models = "Mixtral +27, Qwen3 +16, OLMoE +6 % [N]"
    for rule, said, best, length in (
        (MASS, models, "+10 to +30 % [A]", "-1.4 % [N]"),
        (SQRT_TOP_K, *3 * ("no claim",)),
    ):
        faster, good, long = (
            partial(each, mixed, rule) for each in (speed, kept, tokens)
        )
        yield Claim("speed over EAGLE-3's tree", said, rule, faster)
        yield Claim("the same at comparable quality", best, rule, good)
        yield Claim("tokens a step", length, rule, long)
    won = partial(wins, by_text)
    yield Claim("texts that are faster", "27 of 30 settings [N]", MASS, won)


def speed(judged: Judged, rule: str, budget: int) -> str:
    return percent(judged.ratio(judged.speed(rule, budget)))


def kept(judged: Judged, rule: str, budget: int) -> str:
    """The speed where the quality is comparable."""
    agreement = judged.estimate(judged.a_token("agrees", rule, budget))
    if agreement.low >= COMPARABLE:
        return speed(judged, rule, budget)
    return "not kept"


def tokens(judged: Judged, rule: str, budget: int) -> str:
    return percent(judged.ratio(judged.tokens(rule, budget)))


def wins(by_text: Sequence[Judged], budget: int) -> str:
    """How many texts the paper's rule makes faster."""
    found = [own.ratio(own.speed(MASS, budget)) for own in by_text]
    faster = sum(each.value > 1.0 for each in found)
    surely = sum(each.low > 1.0 for each in found)
    return f"{faster} of {len(found)}, surely {surely}"


def qualities(mixed: Judged) -> Iterator[Claim]:
    """On given text, which all settings share, and on what each decodes."""
    for rule, paper in ((MASS, "comparable [A]"), (SQRT_TOP_K, "no claim")):
        for text, given in (("given", True), ("decoded", False)):
            agreed = partial(agreement, mixed, rule, given)
            yield Claim(f"agreement on {text} text, %", paper, rule, agreed)
        lost = partial(held_out_loss, mixed, rule)
        yield Claim("held-out loss over the target's, nats", paper, rule, lost)


def agreement(judged: Judged, rule: str, given: bool, budget: int) -> str:
    return of_hundred(judged.estimate(judged.a_token("agrees", rule, budget, given)))


def held_out_loss(judged: Judged, rule: str, budget: int) -> str:
    found = judged.estimate(judged.a_token("excess_loss", rule, budget))
    return plainly(found, ".3f")


def modes(mixed: Judged) -> Iterator[Claim]:
    """Divergence on given text over that of the paper's rule at the same budget."""
    for claim, rule, paper in (
        ("divergence over substitution's", TRUNCATION, "substitution is better [N]"),
        ("divergence over equal budgets'", LAYERS, "not tried [N]"),
        ("divergence over the router's ranking", STATIC, "collapses at small B [N]"),
    ):
        yield Claim(claim, paper, rule, partial(apart, mixed, rule))
    yield Claim(
        "speed over EAGLE-3's tree",
        "collapses at small B [N]",
        STATIC,
        partial(speed, mixed, STATIC),
    )


def apart(judged: Judged, rule: str, budget: int) -> str:
    ratio = judged.divergence(rule, budget) / judged.divergence(MASS, budget)
    return plainly(judged.ratio(ratio))


def hindsight(mixed: Judged) -> Iterator[Claim]:
    """Experts that the oracle saves at the divergence of the paper's rule."""
    for text, given in (("given", True), ("decoded", False)):
        saved = partial(fewer, mixed, given)
        yield Claim(f"fewer experts, {text} text", "25 % [N]", ORACLE, saved)


def needed_experts(mixed: Judged, budget: int, given: bool) -> Floats:
    """Experts at which the oracle diverges as the paper's rule does at a budget.

    Between its budgets the logarithm of divergence is taken to be straight; below the
    smallest nothing is known, and that one is returned.
    """
    counts = mixed.budgets[ORACLE]
    logs = np.log([mixed.divergence(ORACLE, own, given) for own in counts])
    wanted = np.log(mixed.divergence(MASS, budget, given))
    columns = zip(wanted, logs.T, strict=True)
    # Divergence falls with experts, and `interp` wants what rises.
    return np.array([np.interp(-want, -own, counts) for want, own in columns])


def fewer(mixed: Judged, given: bool, budget: int) -> str:
    """A share of experts; a bound where the oracle's smallest budget was enough."""
    least = mixed.budgets[ORACLE][0]
    if budget == least:
        return "not known"
    share = 1.0 - needed_experts(mixed, budget, given) / budget
    if share[0] >= 1.0 - least / budget:
        return f"{100.0 * share[0]:.0f} % or more"
    return f"{of_hundred(mixed.estimate(share), '.0f')} %"


def front(recordings: Path) -> Cells:
    """A row a setting."""
    mixed = Judged(load(recordings))
    for rule in (*RULES, *RIVALS):
        for budget in mixed.budgets[rule]:
            yield {
                "rule": rule,
                "B": str(budget),
                "speed": plainly(mixed.ratio(mixed.speed(rule, budget))),
                "tokens a step": plainly(mixed.ratio(mixed.tokens(rule, budget))),
                "divergence, nats": plainly(
                    mixed.estimate(mixed.divergence(rule, budget)), ".4f"
                ),
                "agreement, %": of_hundred(
                    mixed.estimate(mixed.a_token("agrees", rule, budget))
                ),
                "agreement, decoded, %": of_hundred(
                    mixed.estimate(mixed.a_token("agrees", rule, budget, given=False))
                ),
                "loss over the target's, nats": plainly(
                    mixed.estimate(mixed.a_token("excess_loss", rule, budget)), ".3f"
                ),
            }


def overhead(prompts: int) -> Cells:
    for each in chain(measure_overheads(WORLD, prompts), of_served_shape()):
        yield {
            "routing": each.routing,
            "beyond the model's own, % of the layers": of_hundred(each.share, ".2f"),
            "quartiles": "..".join(f"{100.0 * x:.2f}" for x in each.quartiles),
            "all of it, % of the layers": f"{100 * each.whole:.2f}",
            "layers, ms": f"{each.layers_ms:.1f}",
            "on": each.on,
        }


STUDIES: dict[str, Callable[[Path], Cells]] = {
    "claims": claims,
    "front": front,
    "overhead": lambda recordings: overhead(PROMPTS),
}


def percent(found: Estimate) -> str:
    """A ratio as a change: "+2.1 % (-0.4..+4.6)"."""
    value, low, high = (
        f"{100.0 * (each - 1.0):+.1f}" for each in (found.value, found.low, found.high)
    )
    return f"{value} % ({low}..{high})"


def plainly(found: Estimate, form: str = ".2f") -> str:
    value, low, high = (
        format(x, f"z{form}") for x in (found.value, found.low, found.high)
    )
    return f"{value} ({low}..{high})"


def of_hundred(found: Estimate, form: str = ".1f") -> str:
    """A share in per cent."""
    value, low, high = (
        format(100.0 * x, f"z{form}") for x in (found.value, found.low, found.high)
    )
    return f"{value} ({low}..{high})"


@command
def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recordings", type=Path, default=Path("runs/results"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--study", choices=STUDIES, action="append", help="repeatable")
    asked = parser.parse_args(arguments)
    make_folder(asked.out / "data")
    for name in asked.study or STUDIES:
        frame = pd.DataFrame(list(STUDIES[name](asked.recordings)))
        path = asked.out / f"data/moe-spec-{name}.csv"
        write_text(frame.to_csv(index=False, lineterminator="\n"), path)
        print(path, frame.to_string(index=False), sep="\n", flush=True)


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))

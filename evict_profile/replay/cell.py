"""What a contest finds in one cell: where each policy stands, and how sure that is.

A cell is one workload, temperature and batch size; "mixed" has the replies of all
workloads in one order. Pages, verdicts and JSON all read cells, and nothing in them
walks a trace again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from evict_profile.replay.policies import AR, BEST_PAIR, BEST_WIDTH, FULL_TREE, ORACLE
from evict_profile.stats import Estimate

MIXED = "mixed"
BASELINES = (AR, FULL_TREE, BEST_WIDTH, BEST_PAIR, ORACLE)


@dataclass(frozen=True)
class Place:
    """What a cell is of."""

    workload: str
    temperature: float
    batch: int

    def __str__(self) -> str:
        return f"{self.workload}, temperature {self.temperature:g}, batch {self.batch}"


@dataclass(frozen=True)
class Standing:
    """One policy in one cell. Means are over the steps of requests.

    Attributes:
        policy: its name.
        setting: what it was set to in hindsight; empty for one that needs no setting.
        tokens_per_s: of the whole batch.
        over: its throughput over that of each baseline, and of the oracle.
        committed: tokens a request gains in a step.
        verified: tokens of a request verified in a step, its root included.
        depth: levels drafted.
        union: distinct experts a layer, of the whole batch.
        step_us, verify_us, draft_us, fixed_us: time of a step of the batch.
    """

    policy: str
    setting: str
    tokens_per_s: Estimate
    over: Mapping[str, Estimate]
    committed: Estimate
    verified: Estimate
    depth: Estimate
    union: Estimate
    step_us: Estimate
    verify_us: Estimate
    draft_us: Estimate
    fixed_us: Estimate


@dataclass(frozen=True)
class WidthPoint:
    """Throughput at one fixed depth and width."""

    depth: int
    width: int
    tokens_per_s: float


@dataclass(frozen=True)
class Cell:
    """All policies in one place.

    Attributes:
        best: the fixed depth and width that were fastest in hindsight.
        best_width: the width that was fastest at full depth.
        widths: what was tried for them.
        marks: what prices had to assume.
    """

    place: Place
    prompts: int
    tokens: int
    standings: tuple[Standing, ...]
    best: WidthPoint
    best_width: WidthPoint
    widths: tuple[WidthPoint, ...]
    marks: tuple[str, ...]

    def has(self, policy: str) -> bool:
        """Whether a policy was walked here."""
        return any(each.policy == policy for each in self.standings)

    def of(self, policy: str) -> Standing:
        """The standing of a policy."""
        return next(each for each in self.standings if each.policy == policy)

"""Which experts a layer may wake, by rule and by number.

Every rule differs from `mass`, which is MoE-Spec's (arXiv 2602.16052), in one thing, or
in those that its name adds up, so that a recording tells what each is worth. Two are
yardsticks: `static` needs no router at run time, and `oracle` knows what nobody can.
"""

from dataclasses import dataclass

NONE = "none"
MASS = "mass"
"""The experts of the largest summed router probability; they stand in for others."""
TRUNCATION = "truncation"
"""A token that loses an expert gets none in its place."""
PATH = "path"
"""Each token counts as much as the path probability of its node."""
SQRT_PATH = "sqrt-path"
"""Each token counts as much as the square root of it."""
STATIC = "static"
"""The experts that got most on other text, in every step the same."""
TOP_K = "top-k"
"""Of a token's probabilities those of the experts that it would run, and no others."""
SQRT_TOP_K = "sqrt-path+top-k"
LAYERS = "layers"
"""Budgets that differ by layer and add up to the same."""
ALL = "sqrt-path+top-k+layers"
ORACLE = "oracle"
"""Hindsight: what matters to the tokens that will be accepted, and how much."""

DEPLOYABLE = (
    MASS,
    TRUNCATION,
    STATIC,
    PATH,
    SQRT_PATH,
    TOP_K,
    SQRT_TOP_K,
    LAYERS,
    ALL,
)
RULES = (NONE, *DEPLOYABLE, ORACLE)


@dataclass(frozen=True)
class Setting:
    """A rule at a budget.

    Attributes:
        rule: one of `RULES`.
        budget: experts a layer may wake, mean over the layers.
        per_layer: experts that each MoE layer may wake.
        routing_us: what it adds to routing in one verification of a whole tree.
    """

    rule: str
    budget: int
    per_layer: tuple[int, ...]
    routing_us: float = 0.0

    @property
    def name(self) -> str:
        """ "mass 16"; "none"."""
        return self.rule if self.rule == NONE else f"{self.rule} {self.budget}"

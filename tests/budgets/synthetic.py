"""Made-up recordings of budgets whose truth is known."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evict_profile.budgets.schema import (
    BUDGETS,
    COLUMNS,
    MASS,
    NONE,
    ORACLE,
    STATIC,
    Setting,
)
from evict_profile.records import to_mapping
from evict_profile.table import DraftClock
from evict_profile.traces import About

PATH, TRUNCATION, LAYERS = "path", "truncation", "layers"
ABOUT = About(
    "tiny", layers=4, experts=32, top_k=4, depth=3, topk=2, nodes=7, engine="paper"
)
CLOCKS = (DraftClock(1, (0.0, 300.0, 550.0, 800.0), 200.0, 50.0),)
BESIDE_US = 1000.0
"""Drafting to depth 3, and the rest of a step."""
UNION = 24.0
"""Experts that a tree activates without a budget."""
RATES = {
    MASS: 0.1,
    TRUNCATION: 0.2,
    PATH: 0.08,
    STATIC: 0.4,
    LAYERS: 0.09,
    ORACLE: 0.05,
}
"""Nats a token that a rule diverges by at a budget of nothing; halved by 8 experts."""

Row = dict[str, Any]


def setting(rule, budget=ABOUT.experts, routing_us=0.0):
    """The same in each layer; `layers` has one expert more and one fewer."""
    more = (1, -1, 0, 0) if rule == LAYERS else (0,) * ABOUT.layers
    return Setting(rule, budget, tuple(budget + each for each in more), routing_us)


def rows(
    of,
    prompt=0,
    given=False,
    workload="code",
    committed=(2, 2),
    union=None,
    kl=0.0,
    agrees=(True,),
    excess=0.0,
):
    """The steps of one text; `agrees` is repeated over its tokens."""
    found: list[Row] = []
    for count in committed:
        position = sum(row["committed"] for row in found)
        own = [agrees[(position + i) % len(agrees)] for i in range(count)]
        found.append(
            {
                "rule": of.rule,
                "budget": of.budget,
                "workload": workload,
                "prompt": prompt,
                "given": given,
                "position": position,
                "context": 64 + position,
                "verified": ABOUT.nodes + 1,
                "union": min(UNION, of.budget) if union is None else union,
                "committed": count,
                "kl": [kl] * count,
                "agrees": own,
                "loss": [1.0 + excess] * count,
                "plain_loss": [1.0] * count,
            }
        )
    return found


def both(of, prompt=0, **more):
    """One prompt, decoded and given."""
    return rows(of, prompt, False, **more) + rows(of, prompt, True, **more)


def table_of(found, settings, about=ABOUT, clocks=CLOCKS, **changed):
    """Rows with the metadata that makes them a recording."""
    notes = {
        "settings": [to_mapping(each) for each in settings],
        "learnt": {"text": "synthetic"},
        "recorded": {},
        **changed,
    }
    table = pa.Table.from_pylist(list(found), schema=COLUMNS)
    return BUDGETS.mark(table, about, tuple(clocks), **notes)


def typical(prompts=6, budgets=(8, 16, 24), workloads=("code", "prose")):
    """Every rule at every budget; divergence halves with 8 experts more."""
    settings = [setting(NONE)]
    settings += [setting(rule, b, 20.0) for rule in RATES for b in budgets]
    found = []
    for workload in workloads:
        for prompt in range(prompts):
            # A prompt is as hard under every setting.
            rng = np.random.default_rng((len(workload), prompt))
            hard, length = np.exp(0.2 * rng.standard_normal()), int(rng.integers(6, 12))
            for each in settings:
                found += _text(each, prompt, workload, float(hard), length)
    return table_of(found, settings)


def _text(of, prompt, workload, hard, length):
    kl = hard * RATES.get(of.rule, 0.0) * 0.5 ** (of.budget / 8.0)
    apart = max(1, round(0.1 / kl)) if kl else 0
    agrees = [i != 0 for i in range(apart)] if apart else [True]
    committed = [3] * length + ([1] if of.budget < 16 else [3])
    text = {"workload": workload, "committed": committed, "kl": kl, "agrees": agrees}
    return both(of, prompt, excess=kl / 2.0, **text)


def write(path, table):
    """A recording on disk."""
    pq.write_table(table, path)
    return path

"""The page of an atlas: a heat map by GPU and model, and every pair with its reason."""

import pandas as pd
from rich.console import Console

from evict_profile.io import say
from evict_profile.report.render import render
from evict_profile.report.tables import Rows, print_rows
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, PACKAGE, VERSION
from evict_profile.sources.atlas import PAIR as KEY
from evict_profile.sources.atlas import first_failures
from evict_profile.sources.composer import BATCHES

WIDE = 32
PAIR = [name for name in KEY if name != "ep"]
NAMES = ("by_union", "all_alike", "no_experts")


def atlas_page(steps: pd.DataFrame) -> str:
    """The whole document."""
    priced = steps[steps["refused"] == ""]
    refused = steps[steps["refused"] != ""]
    return render(
        "atlas.html.j2",
        title="What verification costs on GPUs that others measured",
        source=f"{PACKAGE} {VERSION}, {LICENCE}, {ATTRIBUTION}",
        gpus=sorted(priced["gpu"].unique()),
        heat=heat(priced),
        wide=WIDE,
        counts=counts(steps),
        priced=_priced_rows(priced),
        refused=Rows((*PAIR, "refused"), refused[[*PAIR, "refused"]].values.tolist()),
    )


def counts(steps: pd.DataFrame) -> str:
    """How many pairs compose, of what, in a sentence."""
    priced = steps[steps["refused"] == ""]
    kinds = ("gpu", "engine", "model")
    spans = ", ".join(f"{priced[kind].nunique()} {kind}s" for kind in kinds)
    pairs = (len(own.drop_duplicates(PAIR)) for own in (priced, steps))
    return "{} of {} pairs compose: {}".format(*pairs, spans.replace("gpus", "GPUs"))


def show_counts(console: Console, steps: pd.DataFrame) -> None:
    """How many pairs compose, and how many each gate refuses first."""
    say(console, counts(steps))
    failed = first_failures(steps).drop("", errors="ignore")
    print_rows(console, Rows(("refused by", "pairs"), list(failed.items())))


def heat(priced: pd.DataFrame) -> dict[tuple[str, str, str], dict[str, float]]:
    """C(n)/C(1) at batch 1 by model, engine and type, then by GPU: the least of it."""
    at = priced[(priced["batch"] == 1) & (priced["width"] == WIDE)]
    by = ["model", "engine", "dtype", "gpu"]
    least = at.groupby(by)["by_union"].min().reset_index()
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for model, engine, dtype, gpu, times in least.itertuples(index=False):
        found.setdefault((model, engine, dtype), {})[gpu] = times
    return found


def _priced_rows(priced: pd.DataFrame) -> Rows:
    head = (*PAIR, "of peak", "C(1), ms")
    named = [f"b {b}: {name.replace('_', ' ')}" for b in BATCHES for name in NAMES]
    rows = []
    for key, own in priced.groupby(PAIR, sort=True):
        first = own[(own["batch"] == 1) & (own["width"] == 1)].iloc[0]
        wide = own[own["width"] == WIDE].set_index("batch")
        times = [format(wide[name][b], ".2f") for b in BATCHES for name in NAMES]
        facts = (f"{first['bandwidth_share']:.2f}", f"{first['step_us'] / 1e3:.2f}")
        rows.append([*key, *facts, *times])
    return Rows((*head, *named), rows)

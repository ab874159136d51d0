"""How wrong a profile is that a server takes of itself at start, with dummy tokens.

    python benchmarks/start_up.py RUN --out start_up.json

Such a profile sends the same token everywhere, so each layer activates top-k experts
whatever the width. In the samples of a sweep both are there: cells in which exactly
top-k experts were forced, and cells of the same width, context and batch that the
router filled itself. What the first costs over what the second costs, less one, is the
error; a rule that trusts such a profile believes wide trees nearly free.

Natural cells are those of the sweep's weights, and the union that they activated is
given beside the error: with dummy weights it grows otherwise than with trained ones.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.common import Answer, command
from evict_profile.cells import with_latency
from evict_profile.errors import ConfigError
from evict_profile.sweep.store import Store

PLACE = ["width", "context", "batch"]


@command
def main(arguments: Sequence[str]) -> None:
    """Print and write the errors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of an evict-profile sweep")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    store = Store(options.run)
    answer = Answer(options.out, [options.run, store.parts])
    cells = errors_of(store)
    if cells.empty:
        top_k = store.header().model.moe.top_k
        raise ConfigError(
            f"{options.run}: has no cell that was measured both with {top_k} experts "
            "and as its router fills it; sweep with 'natural: true'"
        )
    summary = {f"by_{axis}": by(cells, axis) for axis in ("width", "batch")}
    answer.write({"cells": cells.to_dict("records"), **summary})
    print(json.dumps(summary))


def errors_of(store: Store) -> pd.DataFrame:
    """Every place that was measured both ways, a row each.

    `natural_us` and `same_us` are median latencies with the router's choice and with
    top-k experts, `union` what the router activated, and `error` is relative, negative
    where the dummy profile is too low.
    """
    frame, top_k = with_latency(store.frame()), store.header().model.moe.top_k
    layers = frame[frame["part"] == "layers"]
    natural = layers[layers["split"] == "natural"].groupby(PLACE)
    forced = (layers["split"] == "balanced") & (layers["union"] == top_k)
    cells = pd.DataFrame(
        {
            "union": natural["observed_union"].mean(),
            "natural_us": natural["latency_us"].median(),
            "same_us": layers[forced].groupby(PLACE)["latency_us"].median(),
        }
    ).dropna()
    return cells.assign(
        error=cells["same_us"] / cells["natural_us"] - 1.0
    ).reset_index()


def by(cells: pd.DataFrame, axis: str) -> dict[int, dict[str, Any]]:
    """Median and largest error, and the union, along an axis."""
    return {
        int(value): {
            "median_error": round(float(group["error"].median()), 4),
            "largest_error": round(max(group["error"], key=abs), 4),
            "median_union": round(float(group["union"].median()), 1),
            "cells": len(group),
        }
        for value, group in cells.groupby(axis)
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

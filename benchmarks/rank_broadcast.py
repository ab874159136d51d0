"""How long a decision takes from rank 0 to the other ranks of tensor parallelism.

    .venv-sglang/bin/python -m benchmarks.rank_broadcast --out rank_broadcast.json

Two processes exchange the places of 1, 16 and 64 requests, 16 nodes each, by SGLang's
queue in shared memory and by a broadcast of gloo's group, in turn. A time is from the
call on rank 0 to the return on rank 1, whose clock is the same; medians with their
95 % interval. The queue, which the plug-in uses, must be faster: else exit code 1.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, multiprocessing

from benchmarks.common import Answer, command
from evict_profile.stats import median_interval

BATCHES, NODES, EXCHANGES, RANKS = (1, 16, 64), 16, 200, 2
QUEUE, GLOO = "queue", "gloo"


@command
def main(arguments: Sequence[str]) -> int:
    """Print and write the times; 1 where the queue is not faster."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    answer = Answer(parser.parse_args(arguments).out, [])
    heard = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(rank, args=(heard,), nprocs=RANKS)  # type: ignore[no-untyped-call]
    us = heard.get()
    answer.write({"us": us})
    print(json.dumps(us, indent=1))
    return int(any(each[QUEUE][0] > each[GLOO][0] for each in us.values()))


def rank(number: int, heard: Any) -> None:
    """One rank; the last one puts the times of each batch."""
    from sglang.srt.distributed.device_communicators import shm_broadcast

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29671"}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=number, world_size=RANKS)
    group = distributed.group.WORLD
    queue = shm_broadcast.MessageQueue.create_from_process_group(group, 1 << 22, 6)

    def by_gloo(said: Any) -> Any:
        found = [said]
        distributed.broadcast_object_list(found, 0)
        return found[0]

    ways = {QUEUE: queue.broadcast_object, GLOO: by_gloo}
    us = {batch: timed(ways, batch, number) for batch in BATCHES}
    if number:
        heard.put(us)


def timed(
    ways: dict[str, Callable[[Any], Any]], batch: int, number: int
) -> dict[str, list[float]]:
    """Median, and its interval's ends, of each way."""
    places = np.tile(np.arange(NODES), (batch, 1))
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(EXCHANGES):
        for name, broadcast in ways.items():
            distributed.barrier()
            sent_ns, _ = broadcast(
                (time.monotonic_ns(), places) if not number else None
            )
            found[name].append((time.monotonic_ns() - sent_ns) / 1e3)
    medians = {name: median_interval(us) for name, us in found.items()}
    return {name: [us.value, us.low, us.high] for name, us in medians.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

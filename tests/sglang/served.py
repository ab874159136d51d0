"""One engine in a process of its own: answers batches that a file asks, and ends.

SGLang takes a process over: it installs signal handlers, and when its scheduler dies it
kills the process that started it, which must not be that of the tests.

    python -m tests.sglang.served JOB.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.sglang.engine import Tree, start_engine


def main(path: Path) -> None:
    """Write the replies beside the job."""
    job = json.loads(path.read_text())
    tree = Tree(**job["tree"]) if job["tree"] else None
    engine = start_engine(tree, log_level="info", max_running_requests=8)
    said = [_replies(engine, batch) for batch in job["batches"]]
    path.with_name("said.json").write_text(json.dumps(said))
    engine.shutdown()


def _replies(engine: Any, batch: list[dict[str, Any]]) -> list[list[int]]:
    outputs = engine.generate(
        input_ids=[request["prompt"] for request in batch],
        sampling_params=[_sampling(request) for request in batch],
    )
    return [output["output_ids"] for output in outputs]


def _sampling(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "temperature": 0,
        "max_new_tokens": request["max_new_tokens"],
        "stop_token_ids": request["stop"],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))

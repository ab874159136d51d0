"""From a runner's answer to rows of a trace file."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from evict_profile.errors import RunnerError
from evict_profile.traces.plan import ReplyKey
from evict_profile.traces.schema import COLUMNS

Message = dict[str, Any]
STEP_FIELDS = set(COLUMNS.names) - {"workload", "prompt", "seed", "temperature"}


def rows_of(key: ReplyKey, steps: Sequence[Message]) -> pa.Table:
    """One row a step.

    Raises:
        RunnerError: a step without a field, or with one of another type.
    """
    try:
        rows = [{**asdict(key), **_decoded(step)} for step in steps]
        return pa.Table.from_pylist(rows, schema=COLUMNS)
    except KeyError as error:
        raise RunnerError(
            f"the runner answered a step without {error.args[0]}; a step needs "
            f"{', '.join(sorted(STEP_FIELDS))}"
        ) from error
    except (pa.ArrowException, binascii.Error, TypeError, AttributeError) as error:
        raise RunnerError(
            f"the runner answered a step that is none ({error}); see "
            "docs/reference/traces.md"
        ) from error


def _decoded(step: Message) -> Message:
    fields = {name: step[name] for name in STEP_FIELDS}
    return {**fields, "routes": base64.b64decode(step["routes"], validate=True)}

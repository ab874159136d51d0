"""Opening the file of a recording, and the metadata that says what it is."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from evict_profile.errors import TraceError
from evict_profile.traces.schema import Form


@contextmanager
def readable(path: Path, form: Form) -> Iterator[None]:
    """Say in one sentence why a file cannot be read.

    Raises:
        TraceError: a folder, no such file, or no whole Parquet file.
    """
    if path.is_dir():
        raise TraceError(
            f"{path}: is a folder; give the {form.noun} file, which '{form.command}' "
            "writes when its last reply is recorded"
        )
    try:
        yield
    except FileNotFoundError as error:
        raise TraceError(
            f"{path}: is not there; record it with '{form.command}'"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise TraceError(
            f"{path}: is no whole Parquet file ({str(error).splitlines()[0]}); record "
            "or fetch it again"
        ) from error


def notes_of(schema: pa.Schema, source: str, form: Form) -> dict[str, Any]:
    """A file's metadata as it stands.

    Raises:
        TraceError: there is none of this form, or of another schema.
    """
    try:
        notes: dict[str, Any] = json.loads((schema.metadata or {})[form.key])
        stated = notes["schema"]
    except (LookupError, ValueError, TypeError) as error:
        raise TraceError(
            f"{source}: does not say that it is a {form.noun}; give it the metadata "
            f"'{form.key.decode()}' with the schema '{form.schema}', as {form.page} "
            "shows"
        ) from error
    if stated != form.schema:
        raise TraceError(
            f"{source}: has schema '{stated}', and this evict-profile reads "
            f"{form.schema}; upgrade evict-profile, or record it again"
        )
    return notes

"""Samples in the formats of their tools, and files of a text."""

from pathlib import Path

from evict_profile.served.readers import read, read_runs

SAMPLES = Path(__file__).with_name("samples")


def sample(name, drafts=None):
    return read_runs(SAMPLES / name, drafts)


def runs_of(folder, text, drafts=None, name="runs"):
    return reading_of(folder, text, drafts, name).runs


def reading_of(folder, text, drafts=None, name="runs"):
    path = folder / name
    if isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text, encoding="utf-8")
    return read(path, drafts)

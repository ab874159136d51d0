"""Imports between the package's files run one way: no circle, and none runs up."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import evict_profile

ROOT = Path(evict_profile.__file__).parents[1]
LAYERS = (
    {"__main__"},
    {"cli"},
    {"report", "fleet"},
    {"advice", "replay", "calibrate", "integrations", "doctor"},
    {"fit", "sources", "served"},
    {"sweep", "traces", "lossless", "runtime"},
)
"""Rooms from the top down; the other files and rooms of the package lie below."""


def modules() -> dict[str, ast.Module]:
    paths = [*(ROOT / "evict_profile").rglob("*.py")]
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in paths}
    return {
        ".".join(own).removesuffix(".__init__"): ast.parse(path.read_text())
        for path, own in parts.items()
    }


@cache
def imports() -> dict[str, set[str]]:
    trees = modules()
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        names = [
            (getattr(node, "module", None) or "", alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        full = {
            whole if (whole := f"{of}.{name}".lstrip(".")) in trees else of
            for of, name in names
        }
        found[module] = {name for name in full if name in trees and name != module}
    return found


def room(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def layer(module: str) -> int:
    own = (i for i, rooms in enumerate(LAYERS) if room(module) in rooms)
    return next(own, len(LAYERS))


def test_no_import_closes_a_circle_of_files():
    TopologicalSorter(imports()).prepare()


def test_no_import_closes_a_circle_of_rooms():
    rooms: dict[str, set[str]] = {}
    for module, below in imports().items():
        others = {room(name) for name in below} - {room(module), ""}
        rooms.setdefault(room(module), set()).update(others)
    TopologicalSorter(rooms).prepare()


def test_no_import_runs_up():
    up = [
        (module, name)
        for module, below in imports().items()
        for name in below
        if layer(name) < layer(module)
    ]
    assert not up

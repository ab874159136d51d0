"""Signatures in SGLang's sources: of what is installed, or of a wheel in build/wheels,
where `make sglang-wheels` puts them. Nothing of SGLang is imported.
"""

import ast
import inspect
import zipfile
from functools import cache
from importlib import metadata, util
from pathlib import Path

import pytest

from evict_profile.integrations.sglang.compat import CUTTING

WHEELS = Path(__file__).parents[2] / "build/wheels"


def versions():
    """The plug-in's, and others that have a wheel: the newest on the index."""
    found = {path.name.split("-")[1] for path in WHEELS.glob("sglang-*.whl")}
    return [*CUTTING, *sorted(found - set(CUTTING))]


class Sources:
    """The sources below a folder, or below the root of a wheel."""

    def __init__(self, root):
        self._root = root
        self._parsed = cache(lambda path: ast.parse(path.read_text(encoding="utf-8")))

    @classmethod
    @cache
    def of(cls, version):
        if metadata.version("sglang") == version:
            [package] = util.find_spec("sglang").submodule_search_locations
            return cls(Path(package).parent)
        wheels = [*WHEELS.glob(f"sglang-{version}-*.whl")]
        if not wheels:
            pytest.skip(
                f"SGLang {version} is not installed here, and no wheel of it is in "
                "build/wheels: make sglang-wheels"
            )
        return cls(zipfile.Path(wheels[0]))

    def signature(self, target):
        """The signature of a function or method, by its dotted name."""
        return _signature(self._found(target.split(".")))

    def _found(self, names):
        for end in range(len(names) - 1, 0, -1):
            path = self._root.joinpath(*names[: end - 1], f"{names[end - 1]}.py")
            if path.is_file():
                return self._within(self._parsed(path), names[end:])
        raise LookupError(".".join(names))

    def _within(self, module, names):
        """What a module defines, or imports by `from`."""
        name, *rest = names
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self._method(module, node, *rest)
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    if name == (each.asname or each.name):
                        return self._found([*node.module.split("."), each.name, *rest])
        raise LookupError(name)

    def _method(self, module, owner, name):
        """A method of a class, or of the first class above it that has it."""
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        for above in owner.bases:
            try:
                return self._within(module, [ast.unparse(above), name])
            except LookupError:
                continue
        raise LookupError(f"{owner.name}.{name}")


def _signature(function):
    """A function's signature, without its annotations and values of defaults."""
    taken = function.args
    for each in ast.walk(taken):
        if isinstance(each, ast.arg):
            each.annotation = None
    nothing = ast.Constant(None)
    taken.defaults = [nothing for _ in taken.defaults]
    taken.kw_defaults = [default and nothing for default in taken.kw_defaults]
    made = ast.fix_missing_locations(ast.Expression(ast.Lambda(taken, nothing)))
    return inspect.signature(eval(compile(made, function.name, "eval")))

"""Real text that every machine with Python has: the standard library itself.

Each source file gives two documents: its code without comments and docstrings, and
its prose, which is those comments and docstrings. pydoc's topics, the language
reference as `help()` shows it, are prose too, one document a topic.

Whether a document is held out follows from a hash of its file's name, so that a file
that was held out once stays so on another version of Python, in both documents.
"""

import ast
import hashlib
import inspect
import io
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORKLOADS = ("code", "prose")
HELD_OUT_ONE_IN = 16
SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "encodings",
    "lib2to3",
    "pydoc_data",
}
"""Tables rather than text, and packages that are not the library's."""

TEST_FOLDERS = {"test", "tests", "idle_test"}
"""Many distributions leave them out; so they are read only on request, and never held
out: a held-out workload is the same with and without them."""

SHORTEST = 200
"""Characters below which a document is left out."""


@dataclass(frozen=True)
class Document:
    """One text: where it is from, what kind it is, and whether it is held out."""

    name: str
    workload: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether training must not see it."""
        return is_held_out(self.name)


def is_held_out(name: str) -> bool:
    """Whether training must not see the documents of a file."""
    digest = hashlib.sha256(name.encode()).digest()
    drawn = int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0
    return drawn and TEST_FOLDERS.isdisjoint(Path(name).parts)


def standard_library() -> Path:
    """Where this Python keeps its standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_corpus(root: Path, tests: bool) -> list[Document]:
    """Every document of the library at `root`, with or without the library's tests."""
    skipped = SKIPPED_FOLDERS if tests else SKIPPED_FOLDERS | TEST_FOLDERS
    paths = [p for p in _source_files(root) if skipped.isdisjoint(p.parts)]
    return _long_enough([*_source_documents(root, paths), *_topic_documents(root)])


def read_held_out(root: Path) -> list[Document]:
    """The documents that training must not see, without reading the others."""
    skipped = SKIPPED_FOLDERS | TEST_FOLDERS
    paths = [
        p
        for p in _source_files(root)
        if skipped.isdisjoint(p.parts) and is_held_out(p.as_posix())
    ]
    found = [*_source_documents(root, paths), *_topic_documents(root)]
    return _long_enough([document for document in found if document.held_out])


def digest(corpus: list[Document]) -> str:
    """What identifies a corpus: a hash of its names and texts."""
    whole = hashlib.sha256()
    for document in corpus:
        whole.update(f"{document.name}\0{document.workload}\0".encode())
        whole.update(document.text.encode())
    return whole.hexdigest()


def _long_enough(found: list[Document]) -> list[Document]:
    return [document for document in found if len(document.text) >= SHORTEST]


def _source_files(root: Path) -> list[Path]:
    """Every source file, by its path below the root."""
    return [path.relative_to(root) for path in sorted(root.rglob("*.py"))]


def _source_documents(root: Path, names: list[Path]) -> Iterator[Document]:
    for name in names:
        try:
            code, prose = separate((root / name).read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        yield Document(name.as_posix(), "code", code)
        yield Document(name.as_posix(), "prose", prose)


def _topic_documents(root: Path) -> Iterator[Document]:
    path = root / "pydoc_data" / "topics.py"
    if not path.exists():
        return
    assignment = ast.parse(path.read_text(encoding="utf-8")).body[-1]
    if isinstance(assignment, ast.Assign):
        for topic, text in sorted(ast.literal_eval(assignment.value).items()):
            yield Document(f"pydoc_data/topics.py/{topic}", "prose", text)


def separate(source: str) -> tuple[str, str]:
    """The code of a source without comments and docstrings, and those by themselves.

    Raises:
        SyntaxError: the source cannot be parsed.
    """
    lines = source.splitlines(keepends=True)
    prose: list[tuple[int, str]] = []
    for first, last, text in _docstrings(ast.parse(source)):
        prose.append((first, inspect.cleandoc(text) + "\n\n"))
        lines[first - 1 : last] = [""] * (last - first + 1)
    for row, column, comment in _comments(source):
        prose.append((row, comment.lstrip("#! ") + "\n"))
        lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    kept = [line for line in lines if line.strip()]
    return "".join(kept), "".join(text for _, text in sorted(prose))


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """First line, last line and text of each statement that is but a string."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, node.end_lineno or node.lineno, text


def _comments(source: str) -> Iterator[tuple[int, int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield *token.start, token.string

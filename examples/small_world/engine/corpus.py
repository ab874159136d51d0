"""Real text that every machine with Python has: the standard library itself.

Each source file gives two documents: its code without comments and docstrings, and its
prose, which is those; pydoc's topics are prose too. Whether a document is held out
follows from a hash of its file's name, on any version of Python.
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

import torch
from tokenizers import Tokenizer
from torch import Tensor

from evict_profile.errors import ConfigError

WORKLOADS = ("code", "prose")
END = "<|end|>"
"""Token that stands before the first and behind every document."""

HELD_OUT_ONE_IN = 16
SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "encodings",
    "lib2to3",
    "pydoc_data",
    "test",
    "tests",
    "idle_test",
}
"""Packages that are not the library's, tables rather than text, and tests, which many
distributions leave out."""

MIN_CHARACTERS = 200
"""Characters below which a document is left out."""


@dataclass(frozen=True)
class Document:
    """One text: where it is from, what kind it is, and whether it is held out."""

    name: str
    workload: str
    text: str

    @property
    def held_out(self) -> bool:
        return is_held_out(self.name)


def is_held_out(name: str) -> bool:
    """Whether training must not see the documents of a file."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def read_corpus(root: Path, held_out: bool = False) -> list[Document]:
    """Documents of the library at `root`, or only what is held out."""
    names = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    wanted = [
        name
        for name in names
        if SKIPPED_FOLDERS.isdisjoint(name.parts)
        and (not held_out or is_held_out(name.as_posix()))
    ]
    found = [*_source_documents(root, wanted), *_topic_documents(root)]
    long_enough = [
        document for document in found if len(document.text) >= MIN_CHARACTERS
    ]
    return [d for d in long_enough if d.held_out] if held_out else long_enough


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


def encode(tokenizer: Tokenizer, documents: list[Document]) -> Tensor:
    """Documents as one stream [T], each between ends."""
    end = tokenizer.token_to_id(END)
    ids = [end]
    for encoding in tokenizer.encode_batch([d.text for d in documents]):
        ids += [*encoding.ids, end]
    return torch.tensor(ids, dtype=torch.int32)


def encode_held_out(corpus: list[Document], tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The held-out part of a corpus, one stream a workload."""
    return {
        workload: encode(
            tokenizer,
            [d for d in corpus if d.held_out and d.workload == workload],
        )
        for workload in WORKLOADS
    }


class HeldOut:
    """Streams of token ids that training never saw, by workload."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        corpus = read_corpus(standard_library(), held_out=True)
        self.streams = encode_held_out(corpus, tokenizer)

    def prompts(self, workload: str, count: int, tokens: int) -> list[list[int]]:
        """So many prompts, evenly spaced over a workload."""
        if workload not in self.streams:
            raise ConfigError(
                f"no workload {workload}; there are {', '.join(WORKLOADS)}"
            )
        stream = self.streams[workload]
        if count > self.available(workload, tokens):
            raise ConfigError(
                f"{count} prompts of {tokens} tokens were asked for, and {workload} "
                f"has text for {self.available(workload, tokens)}; ask for fewer"
            )
        starts = torch.linspace(0, len(stream) - tokens - 1, count).long()
        return [stream[at : at + tokens].tolist() for at in starts.tolist()]

    def available(self, workload: str, tokens: int) -> int:
        """Prompts of so many tokens that do not overlap."""
        return len(self.streams[workload]) // tokens


def separate(source: str) -> tuple[str, str]:
    """The code of a source without comments and docstrings, and those by themselves."""
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

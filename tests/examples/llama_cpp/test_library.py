"""The library is found and laid out, or refused: without any llama.cpp."""

import re
import struct
from pathlib import Path

import pytest

from examples.llama_cpp import library
from runners.protocol import Refusal


def defaults(flags=b"\0\1\1\1\1\0", grown=0):
    """llama_context_params of a build, with so many unknown fields in the middle."""
    head = struct.pack("<4i", 512, 2048, 512, 1)
    counts = struct.pack("<6i", 0, 0, 1, 4, 4, 0)
    enums = struct.pack("<4i", -1, -1, -1, -1)
    floats = struct.pack("<9f", 0.0, 0.0, -1.0, -1.0, -1.0, -1.0, 0.0, -1.0, 0.0)
    callback, types = bytes(16), struct.pack("<2i", 1, 1)
    middle = bytes(16 + 8 * grown)
    whole = head + counts + enums + floats + bytes(4) + callback + types + middle
    return (whole + flags).ljust(library.BLOCK_BYTES, b"\0")


@pytest.mark.parametrize("grown", [0, 1, 3])
def test_fields_are_found_by_their_defaults(grown):
    """Also when a build has put fields between the cache types and the flags."""
    content = defaults(grown=grown)
    at = library.context_layout(content)
    assert content[at.flash_attention : at.flash_attention + 4] == b"\xff" * 4
    assert struct.unpack_from("<2i", content, at.cache_k) == (1, 1)
    assert at.eval_callback == at.cache_k - 16
    assert content[at.kv_unified - 5 : at.kv_unified + 1] == b"\0\1\1\1\1\0"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (bytes(library.BLOCK_BYTES), "starts with"),
        (defaults(flags=b"\0\1\1\0\1\0"), "flags: 0 places"),
        (defaults(flags=b"\0\1\1\1\1\0" * 2), "flags: 2 places"),
    ],
)
def test_another_layout_is_refused(content, names):
    """A pattern that is absent or not the only one; the fix is named."""
    with pytest.raises(Refusal, match=names) as refused:
        library.context_layout(content)
    assert "update llama.cpp" in str(refused.value)


def test_repacking_is_the_last_flag_that_is_on():
    """With or without the flags of memory mapping before it."""
    old, new = bytes((0, 1, 0, 0, 1, 0)), bytes((0, 0, 1, 0, 0, 0))
    head = bytes(library.FLAGS_AT)
    assert library.repack_offset(head + old + bytes(8)) == library.FLAGS_AT + 4
    assert library.repack_offset(head + new + bytes(8)) == library.FLAGS_AT + 2
    with pytest.raises(Refusal, match="'repack' has no place"):
        library.repack_offset(head + bytes(8))


def test_a_library_that_is_absent_or_no_llama_cpp_is_refused(tmp_path, monkeypatch):
    with pytest.raises(Refusal, match=r"no\.so: no such file; give a libllama"):
        library.find(str(tmp_path / "no.so"))
    monkeypatch.setenv(library.ENVIRONMENT, str(tmp_path / "other.so"))
    with pytest.raises(Refusal, match=r"other\.so: no such file"):
        library.find("")
    (tmp_path / "libllama.so").write_text("no library")
    with pytest.raises(Refusal, match="update llama"):
        library.load(tmp_path / "libllama.so")
    with pytest.raises(Refusal, match="has no llama_backend_init"):
        library.load(Path("libc.so.6"))


def test_the_digest_covers_the_libraries_beside_it(tmp_path):
    """Kernels lie in libggml: another of those is another engine."""
    path = tmp_path / "libllama.so"
    path.write_bytes(b"a")
    alone = library.code_digest(path)
    (tmp_path / "libggml-cpu.so").write_bytes(b"b")
    assert library.code_digest(path) != alone


def test_what_is_said_to_be_installed_is_what_is_tested():
    """By the page and by the refusals."""
    root = Path(library.__file__).parents[2]
    tested = re.findall(
        r'"((?:gguf|xllamacpp)==[\d.]+)"', (root / "pyproject.toml").read_text()
    )
    assert len(tested) == 2
    page = (root / "examples/llama_cpp/README.md").read_text()
    assert f"pip install {' '.join(tested)}\n" in page
    assert f"pip install {tested[1]}" == library.INSTALL

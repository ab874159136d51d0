"""llama.cpp's C library by ctypes: found, loaded, and its parameters laid out.

Its two structs of parameters are passed by value and grow every few weeks; with another
layout, other fields would be set silently. So a larger block is passed, and each field
is found by a pattern that occurs once in the library's own defaults; a library without
it is refused. The self-test (check.py) then proves what was set.
"""

import ctypes
import hashlib
import importlib.util
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runners.protocol import Refusal

ENVIRONMENT = "EVICT_PROFILE_LIBLLAMA"
"""Names the library where the sweep does not."""

INSTALL = "pip install xllamacpp==2026.10.11549"
FIX = f"update llama.cpp, or leave the library away and {INSTALL}"
BLOCK_BYTES = 512
"""More than either struct of parameters has; today 136 and 80."""

Pointer, Size = ctypes.c_void_p, ctypes.c_size_t
Int, Bool = ctypes.c_int32, ctypes.c_bool
Ints = ctypes.POINTER(Int)
EvalCallback = ctypes.CFUNCTYPE(Bool, Pointer, Bool, Pointer)
LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, Pointer)


class Block(ctypes.Structure):
    """Parameters of whatever layout the library has."""

    _fields_ = (("bytes", ctypes.c_uint8 * BLOCK_BYTES),)

    def put(self, offset: int, kind: str, value: object) -> None:
        """Write a value, of a format of `struct`, at a place."""
        struct.pack_into(kind, self.bytes, offset, value)


class Batch(ctypes.Structure):
    """llama_batch: tokens to decode, their positions, sequences and outputs."""

    _fields_ = (
        ("n_tokens", Int),
        ("token", Ints),
        ("embd", Pointer),
        ("pos", Ints),
        ("n_seq_id", Ints),
        ("seq_id", ctypes.POINTER(Ints)),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class Tensor(ctypes.Structure):
    """The head of ggml_tensor: its sizes and its strides in bytes."""

    _fields_ = (
        ("type", Int),
        ("buffer", Pointer),
        ("ne", ctypes.c_int64 * 4),
        ("nb", Size * 4),
    )


class BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override: tensors of this name go to this buffer."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer", Pointer))


_FLOATS = ctypes.POINTER(ctypes.c_float)
SYMBOLS: Mapping[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_print_system_info": (ctypes.c_char_p,),
    "llama_log_set": (None, LogCallback, Pointer),
    "llama_model_default_params": (Block,),
    "llama_context_default_params": (Block,),
    "llama_model_load_from_file": (Pointer, ctypes.c_char_p, Block),
    "llama_model_free": (None, Pointer),
    "llama_model_n_layer": (Int, Pointer),
    "llama_model_get_vocab": (Pointer, Pointer),
    "llama_vocab_n_tokens": (Int, Pointer),
    "llama_tokenize": (Int, Pointer, ctypes.c_char_p, Int, Ints, Int, Bool, Bool),
    "llama_init_from_model": (Pointer, Pointer, Block),
    "llama_free": (None, Pointer),
    "llama_set_n_threads": (None, Pointer, Int, Int),
    "llama_batch_init": (Batch, Int, Int, Int),
    "llama_batch_free": (None, Batch),
    "llama_decode": (Int, Pointer, Batch),
    "llama_synchronize": (None, Pointer),
    "llama_get_logits_ith": (_FLOATS, Pointer, Int),
    "llama_get_memory": (Pointer, Pointer),
    "llama_memory_seq_rm": (Bool, Pointer, Int, Int, Int),
    "llama_memory_seq_cp": (None, Pointer, Int, Int, Int, Int),
    "ggml_get_name": (ctypes.c_char_p, Pointer),
    "ggml_nbytes": (Size, Pointer),
    "ggml_backend_tensor_get": (None, Pointer, Pointer, Size, Size),
    "ggml_backend_tensor_set": (None, Pointer, Pointer, Size, Size),
    "ggml_backend_cpu_buffer_type": (Pointer,),
}
"""What is called: the answer's type, then the arguments'."""


class ContextLayout(NamedTuple):
    """Offsets in llama_context_params, in bytes."""

    flash_attention: int
    eval_callback: int
    cache_k: int
    kv_unified: int


GPU_LAYERS_AT, OVERRIDES_AT, FLAGS_AT = 16, 8, 72
"""In llama_model_params: behind two pointers, the second of them, and behind eight."""


def find(asked: str) -> Path:
    """The library to load: as asked, of the environment, or the one in xllamacpp."""
    named = asked or os.environ.get(ENVIRONMENT, "")
    if named:
        path = Path(named).expanduser()
        if path.is_file():
            return path
        raise Refusal("device", f"{path}: no such file; give a libllama.so")
    package = importlib.util.find_spec("xllamacpp")
    places = (package and package.submodule_search_locations) or ()
    for folder in map(Path, places):
        for path in sorted(folder.glob("xllamacpp*.so")):
            return path
    raise Refusal(
        "device",
        f"no llama.cpp: name your libllama.so in 'options: {{library: ...}}', or "
        f"{INSTALL}, which brings one",
    )


def load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise Refusal("device", f"{path}: {error}; {FIX}") from error
    missing = [name for name in SYMBOLS if not hasattr(library, name)]
    if missing:
        raise Refusal("device", f"{path}: has no {', '.join(missing)}; {FIX}")
    for name, (answer, *arguments) in SYMBOLS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = answer, arguments
    _load_backends(library, path.parent)
    library.llama_backend_init()
    return library


def _load_backends(library: ctypes.CDLL, folder: Path) -> None:
    """Releases keep each backend in a library of its own, loaded by name."""
    if any(folder.glob("libggml-cpu*")) and hasattr(
        library, "ggml_backend_load_all_from_path"
    ):
        load_all = library.ggml_backend_load_all_from_path
        load_all.restype, load_all.argtypes = None, [ctypes.c_char_p]
        load_all(os.fsencode(folder))


def version(library: ctypes.CDLL, digest: str) -> str:
    """llama.cpp's version, where the library has one, and the digest of its code."""
    named = "unknown"
    if hasattr(library, "llama_version"):
        library.llama_version.restype = ctypes.c_char_p
        named = library.llama_version().decode()
    return f"{named}+{digest[:8]}"


def code_digest(path: Path) -> str:
    """Digest of the library and of the ggml libraries beside it."""
    digest = hashlib.sha256()
    for part in (path, *sorted(path.parent.glob("libggml*"))):
        if part.is_file():
            digest.update(part.name.encode() + part.read_bytes())
    return digest.hexdigest()


def context_layout(defaults: bytes) -> ContextLayout:
    """Where the fields of llama_context_params lie, by its defaults.

    The struct starts with n_ctx 512, n_batch 2048, n_ubatch 512, n_seq_max 1. Four
    enumerations of -1 end with flash attention. The callback stands before the only
    pair of ones, the cache types (F16). Of the flags, 0 1 1 1 1 0, the last is
    kv_unified.
    """
    words = struct.unpack(f"<{len(defaults) // 4}i", defaults)
    if words[:4] != (512, 2048, 512, 1):
        raise Refusal(
            "device", f"llama_context_params starts with {words[:4]}, unlike any; {FIX}"
        )
    types = 4 * _only(
        "cache types", 8, 60, lambda i: words[i - 4 : i + 2] == (0, 0, 0, 0, 1, 1)
    )
    minus = _only(
        "flash attention",
        4,
        types // 4,
        lambda i: words[i - 3 : i + 1] == (-1,) * 4 != words[i - 2 : i + 2],
    )
    flags = _only(
        "flags",
        types + 8,
        types + 80,
        lambda i: defaults[i : i + 6] == bytes((0, 1, 1, 1, 1, 0)),
    )
    return ContextLayout(4 * minus, types - 16, types, flags + 5)


def repack_offset(defaults: bytes) -> int:
    """Where use_extra_bufts, which repacks weights, lies in llama_model_params.

    Of the flags at its end it is the last that is true by default.
    """
    flags = defaults[FLAGS_AT : FLAGS_AT + 8]
    if set(flags[:6]) - {0, 1} or 1 not in flags[:6]:
        raise Refusal("device", f"'repack' has no place in llama_model_params; {FIX}")
    return FLAGS_AT + flags[:6].rindex(1)


def check_model_params(defaults: bytes) -> None:
    """The head of llama_model_params is as it has been for years."""
    pointers = struct.unpack_from("<2Q", defaults)
    layers, split = struct.unpack_from("<2i", defaults, GPU_LAYERS_AT)
    if pointers != (0, 0) or not -1 <= layers <= 999 or split != 1:
        raise Refusal("device", f"llama_model_params has an unknown head; {FIX}")


def _only(name: str, first: int, last: int, is_it: Callable[[int], bool]) -> int:
    found = [i for i in range(first, last) if is_it(i)]
    if len(found) != 1:
        raise Refusal(
            "device",
            f"{name}: {len(found)} places in llama_context_params may hold it; {FIX}",
        )
    return found[0]

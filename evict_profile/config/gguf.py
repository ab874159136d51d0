"""The shape of a model from its GGUF file, as llama.cpp serves it.

Sizes come from the file's metadata; how many layers hold experts, their width, their
bytes and their type from its tensors, which no key tells.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from evict_profile.errors import ConfigError

USE_YAML = "describe its shape in a YAML file, and name the GGUF in the sweep's 'llama'"
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""Where ggml has other names than we; its quantised types keep theirs."""
GATING = {1: "softmax", 2: "sigmoid"}
EVERY_SECOND = "gpt-oss"
"""The architecture whose layers attend to a window by turns, from the first."""


class ExpertTensor(NamedTuple):
    """One matrix of all routed experts of a layer: `shape` is (in, out, experts)."""

    layer: int
    name: str
    dtype: str
    bytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Gguf:
    """What a GGUF file says of a mixture-of-experts model.

    Attributes:
        sizes: metadata, the architecture's prefix taken off.
        digest: of the names, types and shapes of all tensors.
    """

    path: Path
    arch: str
    sizes: Mapping[str, Any]
    names: frozenset[str]
    experts: tuple[ExpertTensor, ...]
    digest: str

    @property
    def layers(self) -> int:
        """Decoder layers, without those that only draft."""
        return self.size("block_count") - self.size("nextn_predict_layers", 0)

    @property
    def moe_layers(self) -> int:
        """Decoder layers that hold routed experts."""
        return len({tensor.layer for tensor in self.experts})

    @property
    def dtype(self) -> str:
        """The type that most bytes of experts have."""
        held: Counter[str] = Counter()
        for tensor in self.experts:
            held[tensor.dtype] += tensor.bytes
        most = held.most_common(1)[0][0]
        return DTYPES.get(most, most)

    @property
    def types(self) -> str:
        """Every type of experts' weights: "q4_k+q6_k"."""
        return "+".join(sorted({tensor.dtype for tensor in self.experts}))

    @property
    def bytes_per_expert(self) -> int:
        """As stored; where layers differ, their mean."""
        total = sum(tensor.bytes for tensor in self.experts)
        return round(total / self.moe_layers / self.size("expert_count"))

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of the metadata; of a list by layers, its largest."""
        value = self.sizes.get(name, default)
        if value is None:
            raise ConfigError(f"{self.path}: has no {self.arch}.{name}; {USE_YAML}")
        return int(max(value) if isinstance(value, list) else value)


def read_gguf(path: Path) -> Gguf:
    """Read the head of a GGUF file, all of its parts' where it is split."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path}: the package 'gguf' reads it; pip install 'evict-profile[llama]'"
        ) from error
    try:
        readers = [GGUFReader(part) for part in _parts(path)]
    except (ValueError, OSError, IndexError) as error:
        raise ConfigError(f"{path}: is no readable GGUF file: {error}") from error
    fields = {name: f.contents() for name, f in readers[0].fields.items()}
    arch = str(fields["general.architecture"])
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(f"{t.name} {t.tensor_type.name} {t.shape.tolist()}\n".encode())
    prefix = f"{arch}."
    sizes = {n.removeprefix(prefix): v for n, v in fields.items() if prefix in n}
    sizes.setdefault("vocab_size", len(fields.get("tokenizer.ggml.tokens", ())) or None)
    layers = sizes.get("block_count", 0) - sizes.get("nextn_predict_layers", 0)
    experts = [e for e in map(_expert_tensor, tensors) if e and e.layer < layers]
    if not experts:
        raise ConfigError(
            f"{path}: holds a dense model, or no model; give the GGUF of a "
            "mixture-of-experts model"
        )
    names = frozenset(t.name for t in tensors)
    return Gguf(path, arch, sizes, names, tuple(experts), digest.hexdigest()[:16])


def gguf_mapping(path: Path) -> dict[str, Any]:
    """The fields of `ModelSpec` from a GGUF file."""
    file = read_gguf(path)
    dense = file.layers - file.moe_layers
    return {
        "name": path.stem.lower(),
        "source": str(path),
        "hidden_size": file.size("embedding_length"),
        "num_layers": file.layers,
        "vocab_size": file.size("vocab_size"),
        "attention": _attention(file),
        "moe": _moe(file),
        "dense_layers": dense,
        "dense_width": file.size("feed_forward_length") if dense else 0,
        "dtype": file.dtype,
    }


def _attention(file: Gguf) -> dict[str, Any]:
    heads = file.size("attention.head_count")
    own = file.size("embedding_length") // heads
    found: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": file.size("attention.head_count_kv", heads),
        "head_dim": file.size("attention.value_length", own),
        "qk_norm": "blk.0.attn_q_norm.weight" in file.names,
    }
    if latent := file.size("attention.kv_lora_rank", 0):
        found |= {
            "kind": "mla",
            "num_kv_heads": heads,
            "head_dim": file.size("attention.value_length_mla", own),
            "q_lora_rank": file.size("attention.q_lora_rank", 0),
            "kv_lora_rank": latent,
            "qk_rope_dim": file.size("rope.dimension_count"),
        }
    if window := file.size("attention.sliding_window", 0):
        if file.arch != EVERY_SECOND:
            raise ConfigError(
                f"{file.path}: which layers of '{file.arch}' attend to a window of "
                f"{window} is not known; {USE_YAML}"
            )
        found |= {"sliding_window": window, "sliding_every": 2}
    return found


def _moe(file: Gguf) -> dict[str, Any]:
    width = next(t.shape[0] for t in file.experts if "ffn_down" in t.name)
    shared = file.size("expert_shared_count", 0) * width
    return {
        "num_experts": file.size("expert_count"),
        "top_k": file.size("expert_used_count"),
        "expert_width": width,
        "router": GATING.get(file.size("expert_gating_func", 1), "softmax"),
        "shared_width": file.size("expert_shared_feed_forward_length", shared),
        "groups": file.size("expert_group_count", 1) or 1,
        "groups_kept": file.size("expert_group_used_count", 1) or 1,
    }


def _expert_tensor(tensor: Any) -> ExpertTensor | None:
    found = re.fullmatch(r"blk\.(\d+)\.(ffn_\w+_exps)\.weight", tensor.name)
    if not found:
        return None
    kind, shape = tensor.tensor_type.name.lower(), tuple(tensor.shape.tolist())
    return ExpertTensor(int(found[1]), found[2], kind, int(tensor.n_bytes), shape)


def _parts(path: Path) -> list[Path]:
    """The files of a model: itself, or all parts of which it is the first."""
    split = re.fullmatch(r"(.+)-00001-of-(\d{5})\.gguf", path.name)
    if not split:
        return [path]
    stem, count = split[1], split[2]
    numbers = range(1, int(count) + 1)
    return [path.with_name(f"{stem}-{i:05d}-of-{count}.gguf") for i in numbers]

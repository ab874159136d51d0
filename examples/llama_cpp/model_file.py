"""The shape of a model from its GGUF file.

Sizes come from metadata; layers with experts, and the experts' width, bytes and type,
from the tensors.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from evict_profile.config.names import published_name
from evict_profile.errors import ConfigError

USE_YAML = (
    "describe its shape in a YAML file, and name the GGUF in the plan's 'options'"
)
RECURRENT = {"ssm_in": "mamba", "ssm_": "linear", "shortconv.": "conv"}
"""Kinds of layers by prefix of their tensors' names; the first match."""
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""ggml's names that differ from ours."""
GATING = {1: "softmax", 2: "sigmoid", 4: "sigmoid"}
ALTERNATING_WINDOW_ARCH = "gpt-oss"
"""Every second layer, from the first, attends to a window."""


class ExpertTensor(NamedTuple):
    """One matrix of all experts of a layer; `shape` is (in, out, experts)."""

    layer: int
    name: str
    dtype: str
    bytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Gguf:
    """Metadata and tensors of a mixture-of-experts model.

    Attributes:
        sizes: metadata without the architecture's prefix.
        tensors: number of values by name, without "weight".
        digest: of names, types and shapes of all tensors.
    """

    path: Path
    arch: str
    sizes: Mapping[str, Any]
    tensors: Mapping[str, int]
    experts: tuple[ExpertTensor, ...]
    digest: str

    @property
    def layers(self) -> int:
        return self.size("block_count") - self.size("nextn_predict_layers", 0)

    @property
    def moe_layers(self) -> int:
        return len({tensor.layer for tensor in self.experts})

    @property
    def dtype(self) -> str:
        """The experts' type with most bytes."""
        held: Counter[str] = Counter()
        for tensor in self.experts:
            held[tensor.dtype] += tensor.bytes
        most = held.most_common(1)[0][0]
        return DTYPES.get(most, most)

    @property
    def types(self) -> str:
        return "+".join(sorted({tensor.dtype for tensor in self.experts}))

    @property
    def bytes_per_expert(self) -> int:
        """Mean over layers."""
        total = sum(tensor.bytes for tensor in self.experts)
        return round(total / self.moe_layers / self.size("expert_count"))

    def size(self, name: str, default: int | None = None) -> int:
        """A number of the metadata; the largest of a list."""
        value = self.sizes.get(name, default)
        if value is None:
            raise ConfigError(f"{self.path}: has no {self.arch}.{name}; {USE_YAML}")
        return int(max(value) if isinstance(value, list) else value)


def read_gguf(path: Path) -> Gguf:
    """Read a GGUF file, or all its parts."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path}: the package 'gguf' reads it; pip install gguf==0.19.0"
        ) from error
    try:
        readers = [GGUFReader(part) for part in _parts(path)]
    except (ValueError, OSError, IndexError) as error:
        raise ConfigError(f"{path}: is no readable GGUF file: {error}") from error
    fields = {name: f.contents() for name, f in readers[0].fields.items()}
    arch = str(fields.get("general.architecture", ""))
    if not arch:
        raise ConfigError(f"{path}: has no general.architecture; {USE_YAML}")
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
    values = {t.name.removesuffix(".weight"): int(t.n_elements) for t in tensors}
    return Gguf(path, arch, sizes, values, tuple(experts), digest.hexdigest()[:16])


def gguf_mapping(path: Path) -> dict[str, Any]:
    """The fields of `ModelSpec` from a GGUF file."""
    file = read_gguf(path)
    dense = file.layers - file.moe_layers
    attention, others, notes = _attention(file)
    attends = all(other["kind"] != "none" for other in others)
    return {
        "name": published_name(path).rpartition("/")[2].lower(),
        "source": str(path),
        "hidden_size": file.size("embedding_length"),
        "num_layers": file.layers,
        "vocab_size": file.size("vocab_size"),
        "attention": attention,
        "moe": _moe(file),
        "dense_layers": dense,
        "dense_width": file.size("feed_forward_length") if dense and attends else 0,
        "dtype": file.dtype,
        "tied_embeddings": "output" not in file.tensors,
        "mtp_layers": file.size("nextn_predict_layers", 0),
        "other_layers": others,
        "notes": notes,
    }


def _attention(
    file: Gguf,
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Fields of `AttentionSpec`, of each other kind of layer, and notes."""
    heads = file.size("attention.head_count")
    own = file.size("embedding_length") // heads
    found: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": file.size("attention.head_count_kv", heads),
        "head_dim": file.size("attention.value_length", own),
        "qk_norm": any("attn_q_norm" in name for name in file.tensors),
    }
    keys = file.size("attention.key_length", found["head_dim"])
    if latent := file.size("attention.kv_lora_rank", 0):
        found |= {
            "kind": "mla",
            "num_kv_heads": heads,
            "head_dim": file.size("attention.value_length_mla", own),
            "q_lora_rank": file.size("attention.q_lora_rank", 0),
            "kv_lora_rank": latent,
            "qk_rope_dim": file.size("rope.dimension_count"),
        }
        nope = file.size("attention.key_length_mla", 0) - found["qk_rope_dim"]
        keys = max(nope, 0)
    found["qk_head_dim"] = 0 if keys == found["head_dim"] else keys
    kinds = _kinds(file)
    window = file.size("attention.sliding_window", 0)
    notes: list[str] = []
    if window and file.arch == ALTERNATING_WINDOW_ARCH:
        found |= {"sliding_window": window, "sliding_every": 2}
    elif window and "sliding" not in kinds:
        notes += [f"which layers attend to a window of {window} is unknown: none does"]
    others = [
        {
            "kind": kind,
            "layers": layers,
            "weights": _weights(file, kinds.index(kind)),
            "window": window if kind == "sliding" else 0,
        }
        for kind, layers in sorted(Counter(kinds).items())
        if kind != "full"
    ]
    return found, others, notes


def _kinds(file: Gguf) -> list[str]:
    """The kind of each layer, by its tensors and the pattern of windows."""
    pattern = file.sizes.get("attention.sliding_window_pattern") or []
    kinds = []
    for layer in range(file.layers):
        start = f"blk.{layer}."
        names = [n.removeprefix(start) for n in file.tensors if n.startswith(start)]
        found = (RECURRENT[p] for p in RECURRENT if any(n.startswith(p) for n in names))
        attends = any(n.startswith(("attn_q", "attn_kv", "attn_output")) for n in names)
        windowed = isinstance(pattern, list) and pattern[layer : layer + 1] == [True]
        own = "sliding" if windowed else "full"
        kinds.append(next(found, own if attends else "none"))
    return kinds


def _weights(file: Gguf, layer: int) -> int:
    """Values of a layer's tensors without its MLP."""
    start, mlp = f"blk.{layer}.", f"blk.{layer}.ffn_"
    own = (n for n in file.tensors if n.startswith(start) and not n.startswith(mlp))
    return sum(
        file.tensors[name] for name in own if not name.endswith(("norm", "bias"))
    )


def _moe(file: Gguf) -> dict[str, Any]:
    width, hidden = next(t.shape[:2] for t in file.experts if "ffn_down" in t.name)
    shared = file.size("expert_shared_count", 0) * width
    return {
        "num_experts": file.size("expert_count"),
        "top_k": file.size("expert_used_count"),
        "expert_width": width,
        "router": GATING.get(file.size("expert_gating_func", 1), "softmax"),
        "shared_width": file.size("expert_shared_feed_forward_length", shared),
        "groups": file.size("expert_group_count", 1) or 1,
        "groups_kept": file.size("expert_group_used_count", 1) or 1,
        "expert_hidden": 0 if hidden == file.size("embedding_length") else hidden,
        "gated": any("ffn_gate" in tensor.name for tensor in file.experts),
    }


def _expert_tensor(tensor: Any) -> ExpertTensor | None:
    found = re.fullmatch(r"blk\.(\d+)\.(ffn_\w+_exps)\.weight", tensor.name)
    if not found:
        return None
    kind, shape = tensor.tensor_type.name.lower(), tuple(tensor.shape.tolist())
    return ExpertTensor(int(found[1]), found[2], kind, int(tensor.n_bytes), shape)


def _parts(path: Path) -> list[Path]:
    """The file, or all parts if it is the first of several."""
    split = re.fullmatch(r"(.+)-00001-of-(\d{5})\.gguf", path.name)
    if not split:
        return [path]
    stem, count = split[1], split[2]
    numbers = range(1, int(count) + 1)
    return [path.with_name(f"{stem}-{i:05d}-of-{count}.gguf") for i in numbers]

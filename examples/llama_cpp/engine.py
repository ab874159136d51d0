"""A model in llama.cpp and its contexts: decoding, sequences, logits."""

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.llama_cpp import library as c
from examples.llama_cpp.options import Options
from runners.protocol import Refusal

CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
FLASH = {"auto": -1, "off": 0, "on": 1}
CACHE_STEP = 256
"""A sequence's cache grows in steps of so many cells."""

Ids = Sequence[int] | np.ndarray
Ask = Callable[[int, bool], bool]
"""llama.cpp's eval callback: of a tensor's address, whether it is wanted; and then
again when it is computed."""


@dataclass(frozen=True)
class ContextSize:
    """Most sequences, tokens of each sequence, and tokens of a decode."""

    sequences: int
    tokens: int
    batch: int


class Model:
    def __init__(self, library: Path, path: Path, options: Options) -> None:
        self.c, self.options = c.load(library), options
        self._log = c.LogCallback(lambda *_: None)
        self.c.llama_log_set(self._log, None)
        self._overrides = self._override_list()
        self.handle = self.c.llama_model_load_from_file(
            os.fsencode(path), self._params()
        )
        if not self.handle:
            raise Refusal(
                "memory",
                f"{path}: llama.cpp could not load it; try it with your llama-cli: it "
                "may be damaged, too large for memory, or newer than this library",
            )
        self.vocab = self.c.llama_model_get_vocab(self.handle)
        self.vocab_size = int(self.c.llama_vocab_n_tokens(self.vocab))
        self.layers = int(self.c.llama_model_n_layer(self.handle))

    def close(self) -> None:
        self.c.llama_model_free(self.handle)

    def tokens(self, text: bytes) -> np.ndarray:
        """Token ids of a text, int64 [tokens], without special tokens."""
        room = len(text) + 8
        ids = (c.Int * room)()
        found = self.c.llama_tokenize(
            self.vocab, text, len(text), ids, room, False, False
        )
        return np.array(ids[: max(found, 0)], dtype=np.int64)

    def _params(self) -> c.Block:
        params = self.c.llama_model_default_params()
        c.check_model_params(bytes(params.bytes))
        params.put(c.GPU_LAYERS_AT, "<i", self.options.gpu_layers)
        if not self.options.repack:
            params.put(c.repack_offset(bytes(params.bytes)), "<B", 0)
        if self._overrides is not None:
            params.put(c.OVERRIDES_AT, "<Q", ctypes.addressof(self._overrides))
        return params

    def _override_list(self) -> Any:
        asked = self.options.overrides
        if not asked:
            return None
        wrong = [word for word in asked if not word.endswith("=CPU")]
        if wrong:
            raise Refusal(
                "infeasible",
                f"overrides: '{wrong[0]}' does not end in '=CPU', the only place "
                "that this runner can name",
            )
        cpu = self.c.ggml_backend_cpu_buffer_type()
        patterns = [(word.removesuffix("=CPU").encode(), cpu) for word in asked]
        entries = [c.BufferOverride(*each) for each in (*patterns, (None, None))]
        return (c.BufferOverride * len(entries))(*entries)


class Context:
    """A KV cache and the batch that is decoded into it.

    `ask` is called for each node of the graph, and again for each node it wanted.
    """

    def __init__(self, model: Model, size: ContextSize, ask: Ask | None = None) -> None:
        self.model, self.c, self.size = model, model.c, size
        params = self._params()
        if ask is not None:
            self._callback = c.EvalCallback(lambda tensor, asked, _: ask(tensor, asked))
            address = ctypes.cast(self._callback, c.Pointer).value
            params.put(self.layout.eval_callback, "<Q", address)
        self.handle = self.c.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise Refusal(
                "memory",
                f"no room for a KV cache of {size.sequences} x {size.tokens} tokens: "
                "take a smaller context or batch, or flash_attention: on with a "
                "quantised cache",
            )
        threads = model.options.threads
        self.c.llama_set_n_threads(self.handle, threads, threads)
        self.memory = self.c.llama_get_memory(self.handle)
        self.batch: c.Batch = self.c.llama_batch_init(size.batch, 0, 1)

    def close(self) -> None:
        self.c.llama_batch_free(self.batch)
        self.c.llama_free(self.handle)

    def _params(self) -> c.Block:
        params, options = self.c.llama_context_default_params(), self.model.options
        self.layout = at = c.context_layout(bytes(params.bytes))
        room = -(-self.size.tokens // CACHE_STEP) * CACHE_STEP
        head = (room * self.size.sequences, self.size.batch, self.size.batch)
        for place, value in enumerate((*head, self.size.sequences)):
            params.put(4 * place, "<I", value)
        params.put(at.flash_attention, "<i", FLASH[options.flash_attention])
        params.put(at.cache_k, "<i", CACHE_TYPES[options.cache_k])
        params.put(at.cache_k + 4, "<i", CACHE_TYPES[options.cache_v])
        params.put(at.kv_unified, "<B", 0)
        return params

    def fill(
        self,
        ids: Ids,
        start: int,
        sequences: Sequence[int],
        outputs: bool = True,
    ) -> None:
        """Fill the batch with equally many tokens of each sequence, from `start` on."""
        batch, width = self.batch, len(ids) // len(sequences)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = int(token), start + i % width
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequences[i // width]
            batch.logits[i] = outputs

    def decode(self) -> None:
        status = self.c.llama_decode(self.handle, self.batch)
        self.c.llama_synchronize(self.handle)
        if status:
            raise Refusal("failed", f"llama_decode ended with status {status}")

    def prefill(self, ids: Ids, sequence: int) -> None:
        """Decode a prompt, without outputs, into an empty sequence."""
        for start in range(0, len(ids), self.size.batch):
            part = ids[start : start + self.size.batch]
            self.fill(part, start, [sequence], outputs=False)
            self.decode()

    def cut(self, sequence: int, length: int) -> bool:
        """Forget a sequence from `length` on; False where the cache cannot."""
        return bool(self.c.llama_memory_seq_rm(self.memory, sequence, length, -1))

    def copy(self, source: int, target: int) -> None:
        self.c.llama_memory_seq_rm(self.memory, target, -1, -1)
        self.c.llama_memory_seq_cp(self.memory, source, target, -1, -1)

    def logits(self) -> np.ndarray:
        """Logits of the batch that was decoded, float32 [tokens, vocabulary]."""
        size, get = (self.model.vocab_size,), self.c.llama_get_logits_ith
        rows = (get(self.handle, i) for i in range(self.batch.n_tokens))
        return np.stack([np.ctypeslib.as_array(row, size) for row in rows])

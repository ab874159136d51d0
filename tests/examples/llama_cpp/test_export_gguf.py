"""The trained world in llama.cpp: its routes and logits are those of our own engine."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

pytest.importorskip("gguf")

from examples.llama_cpp.engine import ContextSize, Model
from examples.llama_cpp.hook import Hook
from examples.llama_cpp.options import Options
from examples.small_world.export_gguf import write_world
from tests.examples.small_world.engine.decoding import trained_target

WORLD = Path("examples/small_world/stdlib")
TEXT = 'def read(path: str) -> str:\n    """Return the text of a file."""\n' * 8


@pytest.mark.parametrize(("hidden", "width"), [(0, 0), (256, 64)])
def test_routes_and_logits_are_those_of_our_engine(libllama, tmp_path, hidden, width):
    """As it is, and padded with zeros; the tokenizer's ids are the same too.

    Without flash attention, whose sums are in half precision: it sends one or two of
    2,048 token-layers elsewhere, where two experts score alike to 4 in 10,000.
    """
    path = tmp_path / "world.gguf"
    write_world(WORLD, path, hidden, width)
    exact = Options(cache_k="f32", cache_v="f32", flash_attention="off")
    model = Model(libllama, path, exact)
    ids = model.tokens(TEXT.encode())
    assert (
        ids.tolist()
        == Tokenizer.from_file(str(WORLD / "tokenizer.json")).encode(TEXT).ids
    )
    ids = ids[:128]
    with torch.inference_mode():
        ours = trained_target(WORLD)(torch.from_numpy(ids)[None])
    hook = Hook(model, ContextSize(1, 256, 256))
    hook.context.fill(ids, 0, [0])
    routes = np.stack(hook.read("all", hook.context.decode))
    logits, known = hook.context.logits(), ours.logits[0].numpy()
    same = np.sort(routes, axis=2) == np.sort(ours.routes.numpy(), axis=2)
    assert same.all()
    assert (logits.argmax(axis=1) == known.argmax(axis=1)).all()
    assert np.abs(logits - known).max() <= 1e-3

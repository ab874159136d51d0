"""The stubs of SGLang's cache and attention kernels on a CPU.

Beside the trees (test_kernels.py). Where SGLang has a Triton kernel of the same job,
that one is asked; the drafter's part matters most here, since no mistake in it would
change what an engine says.
"""

import importlib
import importlib.metadata
import importlib.util
import math
import pkgutil

import pytest
import torch

CACHE_LOCS = "sglang.kernels.ops.speculative.cache_locs"
EAGLE = "sglang.kernels.ops.speculative.eagle"
ROWS = torch.tensor([3, 0, 2])
START, END = torch.tensor([4, 0, 7]), torch.tensor([6, 5, 8])
POOL = torch.randperm(4 * 40, generator=torch.Generator().manual_seed(1)).view(4, 40)
POOL_LEN = POOL.shape[1]
TOKENS, ACCEPTED = torch.arange(12), torch.tensor([1, 4, 2])
OLD_TRITON = importlib.util.find_spec(
    "triton"
) is not None and importlib.metadata.version("triton").startswith("3.6.")
needs_loops = pytest.mark.skipif(
    OLD_TRITON, reason="the interpreter of Triton 3.6 has no loops under NumPy 2.4"
)


@pytest.fixture(scope="module")
def stubs():
    return importlib.import_module("sgl_kernel")


@needs_loops
@pytest.mark.parametrize(
    ("name", "kernel", "size", "ours_takes", "theirs_takes"),
    [
        (
            "assign_extend_cache_locs_cpu",
            f"{CACHE_LOCS}.assign_extend_cache_locs",
            int((END - START).sum()),
            lambda out: (ROWS, POOL, START, END, out, POOL_LEN),
            lambda out: (ROWS, POOL, START, END, out, POOL_LEN, 4),
        ),
        (
            "assign_draft_cache_locs_contiguous_cpu",
            f"{CACHE_LOCS}.assign_draft_cache_locs_contiguous",
            3 * 3 * 2,
            lambda out: (ROWS, POOL, START, out, POOL_LEN, 3, 2),
            lambda out: (ROWS, POOL, START, out, POOL_LEN, 3, 2),
        ),
        (
            "fill_bonus_tokens_cpu",
            f"{EAGLE}.fill_bonus_tokens",
            3,
            lambda out: (TOKENS, ACCEPTED, out, 4),
            lambda out: (TOKENS, ACCEPTED, out, 4),
        ),
    ],
)
def test_does_what_sglangs_kernel_does(
    stubs, name, kernel, size, ours_takes, theirs_takes
):
    ours, theirs = torch.zeros(2, size, dtype=torch.int64)
    pkgutil.resolve_name(kernel)[(3,)](*theirs_takes(theirs))
    getattr(stubs, name)(*ours_takes(ours))
    assert ours.any() and torch.equal(ours, theirs)


def test_gathers_the_slots_of_accepted_nodes(stubs):
    accepted, slots = torch.tensor([[0, 2, -1], [4, -1, -1]]), torch.arange(8) * 10
    ours, theirs = torch.zeros(2, 6, dtype=torch.int64)
    kernel = pkgutil.resolve_name(f"{EAGLE}.fill_accept_out_cache_loc")
    kernel[(6,)](accepted, slots, theirs, 8)
    stubs.fill_accept_out_cache_loc_cpu(accepted, slots, ours)
    assert torch.equal(ours, theirs)


def test_writes_new_slots(stubs):
    pool, size = POOL.clone(), int((END - START).sum())
    new, read = torch.arange(1000, 1000 + size), torch.zeros(size, dtype=torch.int64)
    stubs.assign_req_to_token_pool_cpu(ROWS, pool, START, END, new, POOL_LEN)
    stubs.assign_extend_cache_locs_cpu(ROWS, pool, START, END, read, POOL_LEN)
    assert torch.equal(read, new)
    assert int((pool != POOL).sum()) == size


def test_drafted_branches_see_their_own_tokens(stubs):
    topk, steps = 3, 2
    rows = stubs.build_draft_decode_metadata_cpu(
        POOL, ROWS, START, topk, steps, POOL_LEN
    )
    for b, (row, length) in enumerate(zip(ROWS, START, strict=True)):
        for branch in range(topk):
            behind = length + branch * steps
            wanted = [POOL[row, :length], POOL[row, behind : behind + steps]]
            got = rows[b * topk + branch, : length + steps]
            assert torch.equal(got, torch.cat(wanted))


def test_a_buffer_of_the_host_needs_no_cuda():
    """As SGLang asks for one where it keeps the experts of each token."""
    name, why = "sglang.srt.mem_cache.pool_host.common", "before 0.5.20"
    host = pytest.importorskip(name, reason=why)
    buffer = host.ALLOC_MEMORY_FUNCS["cpu"](
        (4, 2),
        dtype=torch.int32,
        device="cpu",
        pin_memory=True,
        allocator=host.HostTensorAllocator(),
    )
    assert buffer.fill_(7).eq(7).all() and buffer.shape == (4, 2)


def test_copies_rows_that_overlap(stubs):
    """In every layer; a row may be read and written in one copy."""
    layers = [torch.randn(9, 2, 3), torch.randn(9, 5)]
    to, source = torch.tensor([2, 3, 4]), torch.tensor([3, 5, 2])
    wanted = [layer.clone() for layer in layers]
    for layer in wanted:
        layer[to] = layer[source].clone()
    stubs.copy_all_layer_kv_cache_cpu(
        torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        torch.tensor([layer[0].nbytes for layer in layers]),
        to,
        source,
    )
    assert all(torch.equal(*pair) for pair in zip(layers, wanted, strict=True))


def dense(q, keys, values, seen):
    """Attention of one request: q [n, heads, d], keys and values [s, kv heads, d]."""
    out, group = torch.zeros_like(q), q.shape[1] // keys.shape[1]
    for head in range(q.shape[1]):
        score = q[:, head] @ keys[:, head // group].T / math.sqrt(q.shape[2])
        weight = score.masked_fill(~seen, -math.inf).softmax(dim=-1)
        out[:, head] = weight @ values[:, head // group]
    return out


@pytest.mark.parametrize("tree", [False, True])
def test_extends(stubs, tree):
    keys, values = torch.randn(2, 160, 2, 4)
    lengths, new, n = torch.tensor([9, 5, 7]), torch.tensor([3, 3, 3]), 3
    starts, q = torch.tensor([0, 3, 6]), torch.randn(9, 4, 4)
    seen = torch.ones(3, n, n, dtype=torch.bool).tril()
    if tree:
        seen[:, 2, 1] = False
    out = torch.zeros_like(q)
    stubs.extend_attention_cpu(
        *(q, None, None, out, keys, values, 1.0, 1.0, POOL, ROWS, lengths, new, starts),
        *(n, 0.5, 0.0, False, 0, None, None, seen.flatten() if tree else None, True),
    )
    for b in range(3):
        slots = POOL[ROWS[b], : lengths[b]]
        prefix = torch.ones(n, int(lengths[b]) - n, dtype=torch.bool)
        mask, piece = torch.cat([prefix, seen[b]], dim=1), slice(b * n, b * n + n)
        wanted = dense(q[piece], keys[slots], values[slots], mask)
        torch.testing.assert_close(out[piece], wanted)


def test_decodes(stubs):
    keys, values = torch.randn(2, 160, 2, 4)
    lengths, q, new = (
        torch.tensor([9, 5, 7]),
        torch.randn(3, 4, 4),
        torch.randn(2, 3, 8),
    )
    places, out = POOL[ROWS, lengths - 1], torch.zeros_like(q)
    stubs.decode_attention_cpu(
        *(q, keys, values, 1.0, 1.0, out, *new, places, None, POOL, ROWS, lengths),
        *(0.5, 0.0, False, 0, None, None),
    )
    assert torch.equal(keys[places].flatten(1), new[0])
    for b in range(3):
        slots = POOL[ROWS[b], : lengths[b]]
        everything = torch.ones(1, int(lengths[b]), dtype=torch.bool)
        wanted = dense(q[b : b + 1], keys[slots], values[slots], everything)
        torch.testing.assert_close(out[b : b + 1], wanted)

"""Compiles the kernels for a GPU that need not be there; run by test_kernels.py.

python compile_kernels.py 90    # compute capability, as in sm_90
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from evict_profile.runtime import budget_kernels, kernels

INTS = ("size", "batch", "pools", "sizes", "flags", "nodes")
BUDGET_INTS = ("tokens", "experts", "top_k", "budget", "row_step", "weight_step")
TYPES = {
    **dict.fromkeys(INTS, "i32"),
    **dict.fromkeys(("places", "unsound"), "*i32"),
    **dict.fromkeys(("k", "tokens", "widths"), "*i64"),
    **dict.fromkeys(("ordered", "costs", "terms", "gained", "cost"), "*fp64"),
    **dict.fromkeys(("refused", "keep"), "*i1"),
    "largest": "fp32",
}
BUDGET_TYPES = {
    **dict.fromkeys(BUDGET_INTS, "i32"),
    **dict.fromkeys(("last_key", "last_expert", "woken"), "*i32"),
    **dict.fromkeys(("weights", "mass", "topk_weights"), "*fp32"),
    "topk_ids": "*i64",
    "smallest": "fp32",
}

NO_LAST = {"last_key": None, "last_expert": None}


def compiled(kernel, target, fixed, **types):
    """The machine code of one kernel; one that does not compile raises."""
    known = {**TYPES, **types}
    names = kernel.arg_names
    signature = {n: "constexpr" if n in fixed else known[n] for n in names}
    values = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    return triton.compile(source, target=target).asm["cubin"]


def main():
    """Every kernel, for each kind of score, both rules, one pool and many."""
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    for kind in ("*fp32", "*fp64", "*bf16", "*fp16"):
        fixed = {"MINE": 32, "OTHERS": 256}
        assert compiled(kernels.rank, target, fixed, path_prob=kind, gains=kind)
    for by_rate, one in ((True, {}), (False, {"pools": 1}), (False, {"size": 1})):
        fixed = {"BY_RATE": by_rate, "BLOCK": 256, "FLAGS": 256, **one}
        assert compiled(kernels.choose, target, fixed)
    assert compiled(kernels.keep_best, target, {"BLOCK": 64})
    for kind in ("*fp32", "*bf16"):
        for truncates in (True, False):
            compile_budget(target, kind, truncates)


def compile_budget(target, kind, truncates):
    """The kernels of routing within a budget, in one mode, for both rankings."""
    types = {**BUDGET_TYPES, "probabilities": kind}
    tile = {"ROWS": 4, "BLOCK": 128, "step": 1}
    assert compiled(budget_kernels.find_last, target, tile, **types)
    for by_run in (True, False):
        no_last = {} if truncates or by_run else NO_LAST
        absent = no_last if truncates else {**no_last, "woken": None}
        for unweighted in ({}, {"weights": None, "weight_step": 0}):
            fixed = {"BY_RUN": by_run, "ROWS": 32, "COLUMNS": 32, "step": 1}
            fixed |= absent | unweighted
            assert compiled(budget_kernels.sum_up, target, fixed, **types)
        for renormalise in (True, False):
            fixed = {"RENORMALISE": renormalise, "OTHERS": 64, "SLOTS": 8}
            fixed |= tile | absent
            assert compiled(budget_kernels.route, target, fixed, **types)


if __name__ == "__main__":
    main()

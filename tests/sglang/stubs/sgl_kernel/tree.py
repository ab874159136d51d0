"""What SGLang asks of its kernels about draft trees, in plain Python.

A draft tree has `n` nodes; node 0 is the token that the last step ended with. The
others are named by their rank in the drafter's flat list of candidates: the children of
the root are ranks 0 to topk - 1, and every later block of `topk` ranks belongs to one
expanded node, which `parent_list` names by its own rank. Node `i` holds the candidate
`selected[i - 1]`; SGLang keeps them in rising order, so a parent comes before its
children.

The results are written into tensors of the caller's, as the kernels do.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

QLEN_ONLY = 1  # a mask of tree nodes alone, the prefix left out; see TreeMaskMode
NONE = -1


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    n: int,
    mask_mode: int,
) -> None:
    """Writes who sees whom, at which position, and the links for walking the tree."""
    if int(mask_mode) != QLEN_ONLY:
        raise NotImplementedError(
            "the stub of sgl_kernel builds QLEN_ONLY masks alone, the layout of"
            f" SGLang's CPU attention, not mode {int(mask_mode)}"
        )
    if depth > 1 and parent_list.shape[1] != topk * (depth - 1) + 1:
        raise ValueError(
            f"parent_list has rows of {parent_list.shape[1]}, and the kernels take the "
            f"stride from depth {depth} and topk {topk}: {topk * (depth - 1) + 1}"
        )
    bs = seq_lens.numel()
    masks = tree_mask[: bs * n * n].view(bs, n, n)
    places = positions[: bs * n].view(bs, n)
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    for b in range(bs):
        parents = _parents(selected[b].tolist(), parent_list[b].tolist(), topk)
        seen = _ancestors(parents, depth)
        masks[b] = seen
        places[b] = seq_lens[b] + seen.sum(dim=1) - 1
        _link(parents, retrieve_next_token[b], retrieve_next_sibling[b])


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follows the target's own tokens down the tree for as long as they were drafted.

    `accept_index` gets the accepted nodes, the root first; `predicts` what the target
    said at each of them; `accept_token_num` how many there are beside the root. The
    width of `accept_index` bounds the walk.
    """
    said = target_predict.flatten().tolist()
    for b in range(candidates.shape[0]):
        accepted = _accepted(
            candidates[b].tolist(),
            retrive_index[b].tolist(),
            retrive_next_token[b].tolist(),
            retrive_next_sibling[b].tolist(),
            said,
            accept_index.shape[1],
        )
        accept_index[b, : len(accepted)] = torch.tensor(accepted)
        accept_token_num[b] = len(accepted) - 1
        predicts[accepted] = torch.tensor(
            [said[node] for node in accepted], dtype=predicts.dtype
        )


def _parents(
    selected: Sequence[int], parent_list: Sequence[int], topk: int
) -> list[int]:
    node_of = {rank: i + 1 for i, rank in enumerate(selected)}
    parents = [NONE]
    for rank in selected:
        block = rank // topk
        parents.append(0 if block == 0 else _node(node_of, parent_list[block], rank))
    return parents


def _node(node_of: dict[int, int], rank: int, child: int) -> int:
    # The kernels leave such a node unlinked without a word; here it is a mistake.
    if rank not in node_of:
        raise ValueError(f"draft node {child} was kept without its parent {rank}")
    return node_of[rank]


def _ancestors(parents: Sequence[int], depth: int) -> Tensor:
    """[n, n] bool: row i is true at the root, at i, and at what lies between them.

    At most `depth` levels below the root are walked, as in the kernels: a caller that
    says too small a depth gets wrong masks here as well.
    """
    n = len(parents)
    seen = torch.zeros(n, n, dtype=torch.bool)
    seen[:, 0] = True
    for i in range(1, n):
        node = i
        for _ in range(depth):
            seen[i, node] = True
            node = parents[node]
            if node == 0:
                break
    return seen


def _link(parents: Sequence[int], next_token: Tensor, next_sibling: Tensor) -> None:
    """A node's first child, and each child's next sibling, in rising order."""
    first: dict[int, int] = {}
    for i in range(len(parents) - 1, 0, -1):
        next_sibling[i] = first.get(parents[i], NONE)
        first[parents[i]] = i
    for node, child in first.items():
        next_token[node] = child


def _accepted(
    candidates: Sequence[int],
    index: Sequence[int],
    next_token: Sequence[int],
    next_sibling: Sequence[int],
    said: Sequence[int],
    longest: int,
) -> list[int]:
    """The accepted nodes of one request, as rows of the whole batch."""
    path = [index[0]]
    node = 0
    while len(path) < longest:
        node = next_token[node]
        while node != NONE and candidates[node] != said[path[-1]]:
            node = next_sibling[node]
        if node == NONE:
            break
        path.append(index[node])
    return path

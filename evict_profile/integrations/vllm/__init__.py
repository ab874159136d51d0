"""A table's curves in vLLM's adaptive verification, without a patch to vLLM."""

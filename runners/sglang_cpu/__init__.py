"""SGLang on a machine without a GPU: what it needs there, and how to start it."""

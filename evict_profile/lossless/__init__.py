"""Which truncation rules leave the output distribution of the target untouched.

`rules` says so in a few lines, and is all that a server needs. The other modules
prove the answers on toy vocabularies by exact enumeration; import them by name.
"""

from evict_profile.lossless.rules import Classification, Combination, classify

__all__ = ["Classification", "Combination", "classify"]

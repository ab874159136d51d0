"""Which loops decide: those of `_scan.c`, or where it was not built those in numpy.

A step at batch 1 makes about a hundred calls of numpy on a few dozen numbers each, and
what a call takes whatever its size is then most of a decision. So what `scan_numpy`
says is compiled with the package wherever a C compiler is at hand.
"""

from importlib import import_module

try:
    loops = import_module("evict_profile.runtime._scan")
except ImportError:
    loops = import_module("evict_profile.runtime.scan_numpy")

COMPILED = loops.__name__.endswith("._scan")

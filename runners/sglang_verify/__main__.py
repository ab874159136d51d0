"""Run as `python -m runners.sglang_verify`, in SGLang's own Python.

Speaks runners/protocol.py; its clocks of drafting also have the `reference_us` that
they were taken at.
"""

import sys

from runners.protocol import die_with_parent, serve_session

die_with_parent()  # Before SGLang is imported: until then a rank would stay alone.
try:
    from runners.sglang_verify.ranks import begin
except ModuleNotFoundError as error:
    sys.exit(
        f"{error.name} is missing in {sys.executable}; install evict-profile beside "
        "SGLang, or give the Python that has both with --python"
    )

if __name__ == "__main__":
    serve_session(begin)

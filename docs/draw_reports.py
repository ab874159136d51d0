"""Draws docs/reports/: figures of reports, as the command line makes them.

python docs/draw_reports.py
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from evict_profile.io import data_root, write_text
from evict_profile.report.render import colours

TABLES = data_root() / "cost_tables"
MEASURED = "intel-xeon-processor-2.50ghz-avx512f/qwen3-30b-a3b/torch-moe/1.2.1.json"
H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp4-ep1/1.0.0.json"
COMMANDS = {
    "measured": ("report", TABLES / MEASURED),
    "estimated": ("report", TABLES / "composed" / H200),
    "replay": ("replay", TABLES / "composed" / H200, "--synthetic", "bursts"),
}
PICTURES = {
    "measured-step": ("measured", "latency of a step"),
    "measured-break-even": ("measured", "break-even"),
    "measured-contours": ("measured", "cost over n and U"),
    "measured-unions": ("measured", "cost over n at forced"),
    "estimated-step": ("estimated", "latency of a step"),
    "replay-policies": ("replay", "throughput"),
}
"""The page of each picture, and how the figure's label begins."""


def main() -> None:
    pages = {name: "".join(figures_of(*words)) for name, words in COMMANDS.items()}
    for name, (page, label) in PICTURES.items():
        figure = re.search(rf'<svg [^>]*aria-label="{label}.*?</svg>', pages[page])
        assert figure, label
        style = f"<style>svg{{font-family:sans-serif}}{colours()}</style>"
        size = re.sub(
            r'viewBox="0 0 (\S+) (\S+)"',
            r'width="\1" height="\2" \g<0>',
            figure[0],
            count=1,
        )
        opening = '<svg xmlns="http://www.w3.org/2000/svg" '
        drawing = size.replace("<svg ", opening, 1).replace(">", f">{style}", 1)
        write_text(drawing + "\n", Path(__file__).parent / "reports" / f"{name}.svg")


def figures_of(*words: str | Path) -> Iterator[str]:
    """Each figure of the page that a command writes."""
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        command = [sys.executable, "-m", "evict_profile", *map(str, words)]
        done = subprocess.run([*command, "--out", str(page)], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        yield from re.findall(r"<svg .*?</svg>", page.read_text(), re.DOTALL)


if __name__ == "__main__":
    main()

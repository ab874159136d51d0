"""Draws docs/cost.svg from tables that are shipped.

On the left what verification costs on real GPUs, composed from public rows; on the
right the union axis as it was measured on a CPU.

    python docs/draw_cost.py
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from evict_profile.fit.fitted import fitted_of_table
from evict_profile.io import data_root, write_text
from evict_profile.report.data import View
from evict_profile.report.figures_cost import forced_unions
from evict_profile.report.plotting import End, label_ends, log_axis
from evict_profile.report.render import colours
from evict_profile.report.style import ACCENT, INK, QUIET, SECOND, canvas, inline_svg
from evict_profile.stats import Floats
from evict_profile.table import CostTable

TABLES = data_root() / "cost_tables"
MEASURED = "intel-xeon-processor-2.50ghz-avx512f/qwen3-30b-a3b/torch-moe/1.2.1.json"
H200 = "nvidia-h200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1"
COMPOSED = {
    "nvidia-rtx-pro-6000-blackwell-server-edition/qwen3-30b-a3b/"
    "vllm-0.24.0-bfloat16-tp1-ep1": ("RTX PRO 6000: Qwen3-30B", INK),
    "nvidia-h100-80gb-hbm3/gpt-oss-120b/vllm-0.24.0-w4a16-mxfp4-tp1-ep1": (
        "H100: gpt-oss-120b",
        SECOND,
    ),
    H200: ("H200: Qwen3-30B", ACCENT),
    "nvidia-b200/qwen3-30b-a3b/sglang-0.5.14-bfloat16-tp1-ep1": (
        "B200: Qwen3-30B",
        QUIET,
    ),
    "nvidia-h200/deepseek-v3/trtllm-1.3.0rc20-fp8-block-tp8-ep1": (
        "8 H200: DeepSeek-V3",
        SECOND,
    ),
}
WIDTHS = np.arange(1, 65)


def main() -> None:
    """Draw the plot as a file of its own, with both colour modes in it."""
    measured = View(*fitted_of_table(TABLES / MEASURED))
    with canvas(9.6, 4.2) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
        composed(left)
        forced_unions(right, measured)
        right.set_title(f"a CPU, measured: {measured.what}")
    drawing = str(inline_svg(figure, "cost", "cost of verification against n"))
    style = f"<style>svg{{font-family:sans-serif}}{colours()}</style>"
    opening = '<svg xmlns="http://www.w3.org/2000/svg" '
    text = drawing.replace("<svg ", opening, 1).replace(">", f">{style}", 1)
    write_text(text + "\n", Path(__file__).with_name("cost.svg"))


def composed(axes: Axes) -> None:
    """C(n)/C(1) at batch 1 of composed tables; of one its band and a dummy's."""
    ends = []
    for name, (label, colour) in COMPOSED.items():
        table = CostTable.load(TABLES / "composed" / name / "1.0.0.json")
        cost = table.costs(1, min(table.axes.context))
        steps = cost.step_cost_us[WIDTHS] / cost.step_cost_us[1]
        axes.plot(WIDTHS, steps, color=colour)
        ends.append(End(64.0, float(steps[-1]), label, colour))
        if name == H200:
            shades = {"color": colour, "alpha": 0.14, "linewidth": 0}
            axes.fill_between(WIDTHS, *band(steps, table.noise), **shades)
            ends.append(_dummy(axes, table, colour))
    log_axis(axes, (1, 2, 4, 8, 16, 32, 64), "verify width n")
    axes.set_ylim(bottom=0.0)
    label_ends(axes, ends)
    axes.set_title("real GPUs, composed and not measured: plain steps, batch 1")


def band(steps: Floats, growth_error: float) -> tuple[Floats, Floats]:
    """Two standard deviations of C(n)/C(1), in its logarithm; none at C(1).

    An error of all costs together cancels.
    """
    reach = 2.0 * growth_error
    return steps ** (1.0 - reach), steps ** (1.0 + reach)


def _dummy(axes: Axes, table: CostTable, colour: str) -> End:
    """What a start-up profile sees, whose tokens all activate the same experts."""
    top_k = float(table.model.moe.top_k)
    us = table.cost.latency_us(WIDTHS.astype(float), top_k, min(table.axes.context), 1)
    axes.plot(WIDTHS, us / us[0], color=colour, linestyle="--", linewidth=1.1)
    return End(64.0, float(us[-1] / us[0]), "H200, tokens all alike", colour)


if __name__ == "__main__":
    main()

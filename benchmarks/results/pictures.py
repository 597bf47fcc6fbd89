"""Curves of an experiment as a picture of the page."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.results.measured import Measured

FOLDER = Path(__file__).parents[2] / "docs" / "images"
COLOURS = ("#2a78d6", "#e07b00")


def drawn(
    name: str,
    measured: Measured,
    rows: Mapping[str, str],
    lines: Mapping[str, str],
    columns: Mapping[str, str],
) -> str:
    """Draw metrics by step and return a link: the mean of the seeds, and their range as a band.

    There is a row for each setting, a column for each metric, and a line for each ending of the
    setting's name.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Texts stay texts, and the same numbers give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 8})
    figure = Figure(figsize=(2.4 * len(columns), 1.6 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True)
    for (setting, title), across in zip(rows.items(), axes, strict=True):
        across[0].set_ylabel(title)
        for (metric, label), axis in zip(columns.items(), across, strict=True):
            if across is axes[0]:
                axis.set_title(label)
            for (ending, of), colour in zip(lines.items(), COLOURS, strict=True):
                steps, values = measured.curves(setting + ending, metric)
                if values.size:
                    axis.plot(steps, values.mean(0), color=colour, label=of, linewidth=1)
                    low, high = np.min(values, axis=0), np.max(values, axis=0)
                    axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axes[0][0].legend(frameon=False)
    file = FOLDER / f"results-{name}.svg"
    figure.savefig(file, metadata={"Date": None})
    return f"![{', '.join(columns.values())} by step](images/{file.name})"

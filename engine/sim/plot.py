"""Draws a result's plots into one PNG file. The only module that needs matplotlib."""

from pathlib import Path

from engine.sim.result import Result

_WIDTH_IN, _HEIGHT_IN, _DOTS_PER_INCH = 8.0, 4.0, 120


def save(result: Result, path: Path) -> None:
    """Write the plots, of which there must be one, below each other as PNG. Raises OSError."""
    # Loaded here, for it takes a second; without pyplot, which would keep state in the process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(result.plots)
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN * count), layout="constrained")
    FigureCanvasAgg(figure)
    for index, plot in enumerate(result.plots, 1):
        axes = figure.add_subplot(count, 1, index)
        for line in plot.lines:
            axes.plot(line.x, line.y, label=line.name, linewidth=1.2)
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        if plot.log_x:
            axes.set_xscale("log", base=2)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH)

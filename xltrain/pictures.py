"""Pictures: PNG files, drawn without a screen and without matplotlib's global state."""

from pathlib import Path
from typing import Any

from xltrain.errors import UsageError


def check_picture(path: Path, option: str) -> None:
    """Raise a :class:`UsageError` that names ``option`` where no PNG file can be written to ``path``."""
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise UsageError(f"{option}: {path} must be a .png file in a folder that exists")


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of so many inches; ``savefig`` writes it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure

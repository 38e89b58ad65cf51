"""A picture: for the page, and for files; the only place that knows how matplotlib writes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saltflat.errors import SettingError
from saltflat.privacy.record import durable
from saltflat.report.chart import Axis, Series, chart
from saltflat.report.html import Html
from saltflat.report.look import LIGHT, Look
from saltflat.report.plot import charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


@dataclass(frozen=True)
class Picture:
    """One figure: ``key`` names its files, ``words`` say what it shows to whoever cannot see it.

    ``draw`` is for files, ``page`` for the page, and ``names`` are the runs in it: (place, name).
    """

    key: str
    title: str
    words: str
    draw: Callable[[Look], Figure]
    page: Callable[[], Html]
    names: tuple[tuple[int, str], ...] = ()
    switch: bool = False  # whether the page can show another scale


def of_lines(key: str, title: str, words: str, series: Sequence[Series], *, x: Axis, y: Axis) -> Picture:
    """The picture of some lines, for files and for the page."""
    return Picture(
        key,
        title,
        words,
        lambda look: chart(look, series, x=x, y=y),
        lambda: charts(series, x=x, y=y, words=f"{title}. {words}"),
        tuple((each.place, each.name) for each in series),
        y.switch,
    )


def check_drawing() -> None:
    """Refuse, in one line, to report where nothing can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingError("the report needs matplotlib: pip install 'saltflat[report]'") from None


def write(picture: Picture, folder: Path) -> list[Path]:
    """The picture as a PNG and an SVG file."""
    files = []
    for kind in FORMATS:
        files.append(folder / f"{picture.key}.{kind}")
        durable.replace(files[-1], _written(picture, LIGHT, kind), mode=durable.RELEASED)
    return files


def _written(picture: Picture, look: Look, kind: str) -> bytes:
    import matplotlib

    file = io.BytesIO()
    style: Any = _style(look)
    with matplotlib.rc_context(style):
        about = (
            {"Date": None} if kind == "svg" else {"Software": "saltflat"}
        )  # the same input, the same bytes
        picture.draw(look).savefig(file, format=kind, dpi=200, metadata=about)
    return file.getvalue()


def _style(look: Look) -> dict[str, Any]:
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    clear = (0.0, 0.0, 0.0, 0.0)
    return {
        **dict.fromkeys(names, look.ink),
        **{f"axes3d.{axis}axis.panecolor": clear for axis in "xyz"},
        "grid.color": look.faint,
        "figure.facecolor": look.paper,
        "savefig.facecolor": look.paper,
        "axes.facecolor": look.paper,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.7,
        "lines.markersize": 4.5,
        "font.family": "DejaVu Sans",  # it comes with matplotlib
        "font.size": 9,
        "legend.fontsize": 8.5,
        "legend.frameon": False,
        "svg.fonttype": "none",  # letters stay letters: smaller, and they can be found
        "svg.hashsalt": "saltflat",
        "text.parse_math": False,  # a run may be called $x$
        "axes.unicode_minus": True,
    }

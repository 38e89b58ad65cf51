"""From a picture to an SVG in the page, or to files; the only place that knows how matplotlib writes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saltflat.errors import SettingError
from saltflat.privacy.record import durable
from saltflat.report.html import Html, tag
from saltflat.report.look import LIGHT, THEMED, Look, themed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


@dataclass(frozen=True)
class Picture:
    """One figure: ``key`` names its files, ``words`` say what it shows to whoever cannot see it."""

    key: str
    title: str
    words: str
    draw: Callable[[Look], Figure]


def check_drawing() -> None:
    """Refuse, in one line, to report where nothing can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingError("the report needs matplotlib: pip install 'saltflat[report]'") from None


def inline(picture: Picture) -> Html:
    """The picture as an SVG element that takes its colours and its fonts from the page."""
    svg = themed(_written(picture, THEMED, "svg").decode("utf-8"))
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = _own_names(body, picture.key)
    (box,) = re.findall(r'viewBox="([^"]*)"', body[:400])
    inside = body[body.index(">") + 1 : body.rindex("</svg>")]
    return tag("svg", Html(inside), viewBox=box, role="img", aria_label=f"{picture.title}. {picture.words}")


def write(picture: Picture, folder: Path) -> list[Path]:
    """The picture as a PNG and an SVG file."""
    files = []
    for kind in FORMATS:
        files.append(folder / f"{picture.key}.{kind}")
        durable.replace(files[-1], _written(picture, LIGHT, kind))
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


def _own_names(svg: str, key: str) -> str:
    """The same SVG with ids that no other figure of the page has."""
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    svg = re.sub(r'\b(xlink:)?href="#', f'href="#{key}-', svg)
    return re.sub(r"url\(#", f"url(#{key}-", svg)


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

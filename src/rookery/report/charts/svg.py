"""SVG as text: just enough of it. Words are escaped here and nowhere else."""

from html import escape

FONT = "font-family: system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"


def element(tag: str, *inside: str, **attributes: object) -> str:
    """Makes an element around finished ones; `stroke_width` is written stroke-width."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{given}>{''.join(inside)}</{tag}>" if inside else f"<{tag}{given}/>"


def safe(text: str, most: int = 500) -> str:
    """Escapes words for a picture or a page; cuts them, and drops signs that XML does not allow."""
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return escape("".join(sign if sign.isprintable() else "?" for sign in shown))


def words(x: float, y: float, text: str, *, most: int = 500, **attributes: object) -> str:
    """Writes a line of text, of `most` signs."""
    return element("text", safe(text, most), x=x, y=y, **attributes)


def box(x: float, width: float, hover: str, **attributes: object) -> str:
    """Draws a rectangle that says something when it is pointed at."""
    return element("rect", element("title", safe(hover)), x=x, width=width, **attributes)


def document(width: float, height: float, style: str, *inside: str, **attributes: object) -> str:
    """Makes a whole picture; it also stands alone as a file."""
    return element(
        "svg",
        element("style", escape(f"text {{ {FONT}; font-size: 12px; fill: #222 }} {style}", False)),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        width=width,
        height=height,
        **attributes,
    )


def _plain(value: object) -> str:
    """Hundredths of a pixel are enough."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

"""HTML whose every text is escaped, because nothing but `element` makes any."""

from __future__ import annotations

import html
import json
import re

_PARTS = re.compile(r"[^_/.:,=\[\]-]*[_/.:,=\[\]-]*", re.DOTALL)  # as in dom.js


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Markup | None


def element(tag: str, *children: Child, **attributes: str | bool | None) -> Markup:
    """`element("a", "text", href="#x")`; `class_` is class, `data_x` is data-x; True is an attribute without a value."""
    opened = "".join(
        f" {_attribute(name)}" if value is True else f' {_attribute(name)}="{html.escape(value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{tag}{opened}>{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    return Markup("".join(_escaped(child) for child in children if child is not None))


def icon(name: str) -> Markup:
    """One of the symbols of the template; whoever shows it says in words what it means."""
    return Markup(
        f'<svg class="icon" aria-hidden="true" focusable="false"><use href="#i-{html.escape(name)}"/></svg>'
    )


def data_block(name: str, content: object) -> Markup:
    """Data for the page's script; nothing in it can end the block."""
    written = json.dumps(
        content, separators=(",", ":"), allow_nan=False
    )  # ASCII: JSON has escapes for the rest
    for sign in "<>&":  # what could end the block, or begin another
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json" id="{html.escape(name)}">{written}</script>')


def command_line(command: str) -> Markup:
    """A command to copy: the page's script adds the button."""
    return element("span", element("code", command), class_="command", data_copy=True)


def breakable(text: str) -> Markup:
    """A long name may go on in the next line behind a sign of its own, and nowhere else if it can be helped."""
    return Markup("<wbr>".join(_escaped(part) for part in _PARTS.findall(text)))


def unbroken(text: str) -> str:
    """A number and its per cent sign stay on one line."""
    return text.replace(" %", "\u00a0%")


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _escaped(child: str) -> str:
    return child if isinstance(child, Markup) else html.escape(_shown(child))


def _shown(text: str) -> str:
    """Characters that HTML forbids, or that would not survive UTF-8, as a sign that something is there."""
    return "".join(
        "\ufffd" if (c < " " and c not in "\n\t") or "\ud800" <= c <= "\udfff" else c for c in text
    )

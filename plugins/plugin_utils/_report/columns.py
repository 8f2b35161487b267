# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text in columns of a terminal, where a wide character (of Chinese, Japanese, Korean) takes two. Private."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

WIDTH = 100


def width(text: str) -> int:
    """The columns that a terminal takes for the text (Unicode Standard Annex 11, East Asian Width)."""
    return len(text) if text.isascii() else sum(map(_width_of, text))


def _width_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def padded(text: str, columns: int) -> str:
    """The text with spaces behind it, until it is that wide."""
    return text + " " * (columns - width(text))


def wrap(text: str, indent: str = "", further: str | None = None, columns: int = WIDTH) -> list[str]:
    """Lines of at most so many columns; further is the indent from the second line on, if it is another."""
    following = indent if further is None else further
    lines, line, empty = [], indent, True
    for word in text.split():
        if not empty and width(line) + 1 + width(word) <= columns:
            line += f" {word}"
            continue
        if not empty:
            lines.append(line)
            line = following
        *full, rest = _pieces(word, columns - width(line))
        for piece in full:
            lines.append(line + piece)
            line = following
        line, empty = line + rest, False
    return [*lines, line]


def _pieces(word: str, columns: int) -> Iterator[str]:
    """A word that is longer than a line, cut where the line ends."""
    piece, taken = "", 0
    for character in word:
        if taken + _width_of(character) > columns and piece:
            yield piece
            piece, taken = "", 0
        piece += character
        taken += _width_of(character)
    yield piece


def table(rows: Sequence[Sequence[str]], indent: str = "  ", most: int = 24) -> Iterator[str]:
    """Rows of cells in columns; a cell is wrapped within its column, the last one up to the end of the line."""
    sizes = [min(most, max(width(row[column]) for row in rows)) for column in range(len(rows[0]) - 1)]
    sizes.append(WIDTH - len(indent) - sum(sizes) - 2 * len(sizes))
    for row in rows:
        cells = [wrap(cell, columns=size) for cell, size in zip(row, sizes, strict=True)]
        for number in range(max(map(len, cells))):
            parts = (cell[number] if number < len(cell) else "" for cell in cells)
            yield (indent + "  ".join(padded(part, size) for part, size in zip(parts, sizes, strict=True))).rstrip()


def plain(value: float) -> str:
    """A figure as people write it: 12,346 and not 1.2346e+04."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

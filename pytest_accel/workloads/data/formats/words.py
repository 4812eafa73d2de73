r"""Where a text is cut before its bytes are merged: GPT-2's pattern, without the package that it was written for.

    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

Python's `re` knows neither \p{L} nor \p{N}, and its \s has four control characters that Unicode's White_Space has not.
The classes are written out here from unicodedata. One way for everyone: with `regex` where it is installed, the same
text would have other tokens on machines whose two packages know different versions of Unicode.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

WHITE_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # PropList.txt
_LAST_OF_BMP = 0xFFFF
_BEYOND = r"\U00010000-\U0010ffff"


@cache  # a fifth of a second
def word_pattern() -> re.Pattern[str]:
    """Compile the pattern; `findall` cuts a text into words, and no character is left out.

    `re` looks up characters below U+10000 in a table, and goes through ranges beyond one by one: those are asked for
    only where such a character stands (2.7 instead of 1.0 million words a second, Python 3.11, one core of a Xeon).
    """
    categories = "".join(unicodedata.category(chr(each))[0] for each in range(sys.maxunicode + 1))
    letters, letters_beyond = _ranges(categories, "L")
    numbers, numbers_beyond = _ranges(categories, "N")
    beyond = f"(?=[{_BEYOND}])"
    space = WHITE_SPACE
    return re.compile(
        "'(?:[stmd]|re|ve|ll)"
        rf"| ?(?:[{letters}]++|{beyond}[{letters_beyond}])++"
        rf"| ?(?:[{numbers}]++|{beyond}[{numbers_beyond}])++"
        rf"| ?(?:[^{space}{letters}{numbers}{_BEYOND}]++|{beyond}[^{letters_beyond}{numbers_beyond}])++"
        rf"|[{space}]+(?![^{space}])"
        rf"|[{space}]+"
    )


def _ranges(categories: str, wanted: str) -> tuple[str, str]:
    """The characters of a category as the inside of a class: those below U+10000, and those beyond."""
    spans = [(match.start(), match.end() - 1) for match in re.finditer(f"{wanted}+", categories)]
    inside = [f"\\U{first:08x}-\\U{last:08x}" for first, last in spans if last <= _LAST_OF_BMP]
    beyond = [f"\\U{first:08x}-\\U{last:08x}" for first, last in spans if first > _LAST_OF_BMP]
    return "".join(inside), "".join(beyond)

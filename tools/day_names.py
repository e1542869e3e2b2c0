"""Write cablestore/irc/days.txt: names of weekdays and months of all locales of the GNU C library.

`day_names.py [FOLDER]`, by default /usr/share/i18n/locales, which the package `locales` of Debian has. The Free
Software Foundation does not claim copyright in these data.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TARGET = Path(__file__).parent.parent / "cablestore" / "irc" / "days.txt"
KEYS = {"abday": 7, "day": 7, "abmon": 12, "mon": 12, "ab_alt_mon": 12, "alt_mon": 12}


def words_of(text: str, key: str, number: int) -> list[str]:
    """Return the names under a key, [] if the locale does not have `number` names."""
    found = re.search(rf"^{key}\s+((?:[^\n]*/\n)*[^\n]*)$", text, re.MULTILINE)
    if found is None:
        return []
    plain = re.sub(r"/\n\s*", "", found[1])
    words = [
        re.sub(r"<U([0-9A-Fa-f]+)>", lambda code: chr(int(code[1], 16)), word)
        for word in re.findall(r'"([^"]*)"', plain)
    ]
    return [word.strip() for word in words] if len(words) == number else []


def main() -> None:
    """Write each set of names once: weekdays from Sunday on, `|`, months from January on."""
    lines: set[str] = set()
    for file in sorted(Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/i18n/locales").iterdir()):
        text = file.read_text(errors="replace")
        found = {key: words_of(text, key, number) for key, number in KEYS.items()}
        for days, months in (("abday", "abmon"), ("day", "mon"), ("abday", "ab_alt_mon"), ("day", "alt_mon")):
            if found[months] and not any(word.isdigit() for word in found[months]):
                lines.add("\t".join(found[days]) + "|" + "\t".join(found[months]))
    TARGET.write_text("".join(f"{line}\n" for line in sorted(lines)))


if __name__ == "__main__":
    main()

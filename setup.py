"""The README with links that work on a package index, and the C extension. All else of the build is in pyproject.toml."""

from __future__ import annotations

import re
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
_LINK = re.compile(r"""(!?\[[^\]]*\]\(|(?:src|href)=")(?!https?:|mailto:|#)([^)"]+)""")


def _with_absolute_links(text: str, version: str, homepage: str) -> str:
    """Make links to files of the repository absolute: to the files of this version, and to the bytes of pictures."""

    def absolute(match: re.Match[str]) -> str:
        begin, path = match.groups()
        is_picture = begin.startswith(("!", "src"))
        return f"{begin}{homepage}/{'raw' if is_picture else 'blob'}/v{version}/{path}"

    return _LINK.sub(absolute, text)


def _version() -> str:
    source = (ROOT / "cablestore" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__: Final = "(.+)"$', source, flags=re.MULTILINE)
    if found is None:
        raise ValueError("cablestore/__init__.py has no line of __version__")
    return found[1]


HOMEPAGE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# The limited API: one wheel fits Python 3.11 and all later ones, but not those without a lock, which lack this API.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
SIGNATURES = Extension(
    "cablestore._signatures",
    ["cablestore/_signatures.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
    py_limited_api=LIMITED,
    extra_link_args=["-pthread"],
    optional=True,  # without a compiler verification takes one signature at a time
)

setup(
    ext_modules=[SIGNATURES],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
    long_description=_with_absolute_links(README, _version(), HOMEPAGE),
    long_description_content_type="text/markdown",
)

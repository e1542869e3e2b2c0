"""Export of a store: files with checksums, and back."""

from typing import TYPE_CHECKING, Any

from cablestore.export.importer import ImportSummary
from cablestore.export.manifest import Filters, Manifest, Segment, read_manifest

if TYPE_CHECKING:
    from cablestore.export.verify import ExportProblem, ExportReport, verify_export

__all__ = [
    "ExportProblem",
    "ExportReport",
    "Filters",
    "ImportSummary",
    "Manifest",
    "Segment",
    "read_manifest",
    "verify_export",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cablestore.export import verify  # noqa: PLC0415 - opening a store does without it

    return getattr(verify, name)

"""Export of a store into files with checksums, and import."""

from typing import TYPE_CHECKING

from cablestore.export.importer import ImportSummary
from cablestore.export.manifest import Filters, Manifest, Segment, read_manifest
from cablestore.lazy import loader

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

__getattr__ = loader(__name__, {"verify": "ExportProblem ExportReport verify_export"})

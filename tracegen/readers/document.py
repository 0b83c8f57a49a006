"""The events of a trace file, whatever its format."""

from __future__ import annotations

from pathlib import Path

from tracegen.readers import proto, text
from tracegen.readers.warn import Warnings


def document_of(path: str | Path, warnings: Warnings) -> text.Document | proto.Document:
    """A trace as events: protobuf by its name, else JSON.

    Raises:
        FileError: if it is JSON and cannot be read, or is empty.
    """
    if str(path).endswith(proto.SUFFIXES):
        return proto.Document(path)
    return text.Document(path, text.text_of(path, warnings), warnings)

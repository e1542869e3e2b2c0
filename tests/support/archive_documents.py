"""Documents of archives as the protobuf library reads and writes them, from the .proto files of the documentation.

The package has separate tables. The classes here share only the public .proto files with them.
"""

from __future__ import annotations

import re
from typing import Any, Final

from folders import ROOT
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

_FOLDER: Final = ROOT / "docs" / "reference" / "proto"
_MESSAGE: Final = re.compile(r"message (\w+) \{(.*?)\n\}", re.DOTALL)
_FIELD: Final = re.compile(r"(optional |repeated |)(map<string, \w+>|[\w.]+) (\w+) = (\d+);")
_POOL: Final = descriptor_pool.DescriptorPool()


class Documents:
    """The classes of a .proto file, by their names."""

    def __init__(self, name: str) -> None:
        text = re.sub(r"//.*", "", (_FOLDER / f"{name}.proto").read_text())
        self._package = re.findall(r"package ([\w.]+);", text)[0]
        file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package=self._package, syntax="proto3")
        file.dependency.extend(re.findall(r'import "(.+)";', text))
        for title, body in _MESSAGE.findall(text):
            message = file.message_type.add(name=title)
            for label, kind, field, number in _FIELD.findall(body):
                self._add(message, label, kind, name=field, number=int(number))
        _POOL.Add(file)

    def __getattr__(self, name: str) -> Any:
        return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{self._package}.{name}"))

    def _add(self, message: DescriptorProto, label: str, kind: str, *, name: str, number: int) -> None:
        is_map = kind.startswith("map<")
        field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if is_map or label == "repeated ":
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if label == "optional ":
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")
        if is_map:
            entry = message.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            self._add(entry, "", "string", name="key", number=1)
            self._add(entry, "", kind[len("map<string, ") : -1], name="value", number=2)
            kind = f"{self._package}.{message.name}.{entry.name}"
        if f"TYPE_{kind.upper()}" in FieldDescriptorProto.Type.keys():  # noqa: SIM118 - an enum of protobuf, not a dictionary
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        else:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{kind}" if "." in kind else f".{self._package}.{kind}"


waku: Final = Documents("waku")
rfc61: Final = Documents("rfc61")
status_go: Final = Documents("status_go")
commitment: Final = Documents("commitment")

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArchiveCommitment(_message.Message):
    __slots__ = ("id", "sha256", "num_posts", "merkle_root", "cid")
    ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    NUM_POSTS_FIELD_NUMBER: _ClassVar[int]
    MERKLE_ROOT_FIELD_NUMBER: _ClassVar[int]
    CID_FIELD_NUMBER: _ClassVar[int]
    id: str
    sha256: bytes
    num_posts: int
    merkle_root: bytes
    cid: str
    def __init__(self, id: _Optional[str] = ..., sha256: _Optional[bytes] = ..., num_posts: _Optional[int] = ..., merkle_root: _Optional[bytes] = ..., cid: _Optional[str] = ...) -> None: ...

class Statement(_message.Message):
    __slots__ = ("version", "control_key", "dialect", "profile", "is_sealed", "archives", "deletions")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTROL_KEY_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    IS_SEALED_FIELD_NUMBER: _ClassVar[int]
    ARCHIVES_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_FIELD_NUMBER: _ClassVar[int]
    version: int
    control_key: bytes
    dialect: str
    profile: str
    is_sealed: bool
    archives: _containers.RepeatedCompositeFieldContainer[ArchiveCommitment]
    deletions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, version: _Optional[int] = ..., control_key: _Optional[bytes] = ..., dialect: _Optional[str] = ..., profile: _Optional[str] = ..., is_sealed: _Optional[bool] = ..., archives: _Optional[_Iterable[_Union[ArchiveCommitment, _Mapping]]] = ..., deletions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SignedStatement(_message.Message):
    __slots__ = ("statement", "signature")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    signature: bytes
    def __init__(self, statement: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RawEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class RawIndex(_message.Message):
    __slots__ = ("archives", "commitment")
    ARCHIVES_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    archives: _containers.RepeatedCompositeFieldContainer[RawEntry]
    commitment: SignedStatement
    def __init__(self, archives: _Optional[_Iterable[_Union[RawEntry, _Mapping]]] = ..., commitment: _Optional[_Union[SignedStatement, _Mapping]] = ...) -> None: ...

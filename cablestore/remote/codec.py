"""Codecs of arguments and results, derived from the types of a method's parameters and of its result.

msgspec encodes and decodes most types directly. Other types are converted. A post is sent as its bytes, and a folder as
its absolute path or URI. A member of a union of classes is sent with its class name.
"""

from __future__ import annotations

import collections.abc
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from cablestore.errors import ArgumentError, DecodeError
from cablestore.files import ObjectFolder, folder_of
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post, decode_post
from cablestore.store.display import Message
from cablestore.store.results import Channel

Convert = Callable[[Any], Any]

_LISTS: Final = (list, Iterable, collections.abc.Sequence, collections.abc.Iterator)


class Codec(NamedTuple):
    """Codec of a type. `wire` is the type that msgspec encodes and decodes.

    `down` converts a value to `wire`, and `up` converts it back. They are None if no conversion is needed.
    """

    wire: Any
    down: Convert | None = None
    up: Convert | None = None

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes. Raises TypeError, ValueError or OverflowError if it cannot be encoded."""
        return _ENCODER.encode(value if self.down is None else self.down(value))

    def decode(self, raw: bytes | msgspec.Raw) -> Any:
        """Return the decoded value. Raises ValueError if the bytes do not match the type."""
        try:
            value = _decoder(self.wire).decode(raw)
            return value if self.up is None else self.up(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, DecodeError) as error:
            raise ValueError(str(error)) from None


@cache
def codec_of(hint: Any, dialect: Dialect) -> Codec:
    """Return the codec of a type in a store of this dialect."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _OWN:
        return _OWN[hint](dialect)
    if origin in (UnionType, Union):
        return _union_codec(arguments, dialect)
    if origin in _LISTS:
        return _list_codec(origin, arguments[0], dialect)
    if origin is tuple:
        return _tuple_codec(arguments, dialect)
    return _record_codec(hint, dialect) if _is_record(hint) and not _is_known(hint) else Codec(hint)


def _post_codec(dialect: Dialect) -> Codec:
    def up(found: tuple[bytes, bytes | None]) -> Post:
        post = decode_post(found[0], dialect)
        post.sealed = found[1]
        return post

    return Codec(tuple[bytes, bytes | None], _if(Post, lambda post: (post.raw, post.sealed)), up)


def _channel_codec(dialect: Dialect) -> Codec:
    """Return the codec of channels. A channel is sent with its latest message."""
    names = [each.name for each in dataclasses.fields(Channel) if not each.name.startswith("_")]
    hints = get_type_hints(Channel)
    values = _tuple_codec(tuple(hints[name] for name in names), dialect)

    def down(channel: Channel) -> Any:
        return [getattr(channel, name) for name in names], channel.last_message

    def up(found: tuple[Any, Message | None]) -> Channel:
        return replace(Channel(*found[0]), _latest=lambda _: found[1])

    return Codec(GenericAlias(tuple, (values.wire, Message | None)), _if(Channel, down), up)


def _list_codec(origin: Any, item: Any, dialect: Dialect) -> Codec:
    codec = codec_of(item, dialect)
    is_lazy = origin is not list
    down = codec.down

    def listed(values: Any) -> Any:
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            return values  # unconverted: the called method then raises the error
        return list(values) if down is None else [down(each) for each in values]

    up = codec.up
    return Codec(
        GenericAlias(list, (codec.wire,)),
        listed if is_lazy or down is not None else None,
        None if up is None else lambda found: [up(each) for each in found],
    )


def _tuple_codec(kinds: tuple[Any, ...], dialect: Dialect) -> Codec:
    if kinds[-1:] == (Ellipsis,):
        many = codec_of(GenericAlias(list, (kinds[0],)), dialect)
        up = many.up or (lambda found: found)
        return Codec(many.wire, many.down, lambda found: tuple(up(found)))
    codecs = [codec_of(kind, dialect) for kind in kinds]
    wire = GenericAlias(tuple, tuple(codec.wire for codec in codecs))
    if all(codec.down is codec.up is None for codec in codecs):
        return Codec(wire)
    downs = [codec.down or _same for codec in codecs]
    ups = [codec.up or _same for codec in codecs]
    return Codec(
        wire,
        lambda values: [down(value) for down, value in zip(downs, values, strict=True)],
        lambda found: tuple(up(value) for up, value in zip(ups, found, strict=True)),
    )


def _record_codec(kind: Any, dialect: Dialect) -> Codec:
    """Return the codec of a dataclass or NamedTuple for which `_is_known` returns False."""
    hints = get_type_hints(kind, None, _late_names())
    names = kind._fields if hasattr(kind, "_fields") else [each.name for each in dataclasses.fields(kind)]
    values = _tuple_codec(tuple(hints[name] for name in names), dialect)
    down, up = values.down or _same, values.up or _same
    return Codec(
        values.wire,
        _if(kind, lambda value: down([getattr(value, name) for name in names])),
        lambda found: kind(*up(found)),
    )


def _union_codec(kinds: tuple[Any, ...], dialect: Dialect) -> Codec:
    if ObjectFolder in kinds:
        return Codec(str, _location, _path_or_folder if str not in kinds else None)
    for several in ([kind for kind in kinds if _is_record(kind)], [kind for kind in kinds if kind in (str, bytes)]):
        if len(several) > 1:
            return _one_of_codec(several, dialect, is_optional=NoneType in kinds)
    codecs = [codec_of(kind, dialect) for kind in kinds]
    wire = reduce(or_, (codec.wire for codec in codecs))
    [codec] = [each for each in codecs if each.down or each.up] or [Codec(None)]
    return Codec(wire, _unless_none(codec.down), _unless_none(codec.up))


def _one_of_codec(kinds: list[Any], dialect: Dialect, *, is_optional: bool) -> Codec:
    """Return the codec of a union of the classes `kinds`, and of None if `is_optional`.

    A value is encoded together with the name of its class.
    """
    codecs = {kind.__name__: codec_of(kind, dialect) for kind in kinds}

    def down(value: Any) -> Any:
        name = type(value).__name__
        return (name, msgspec.Raw(codecs[name].encode(value))) if name in codecs else value

    def up(found: Any) -> Any:
        name, raw = found
        if name not in codecs:
            raise msgspec.ValidationError(f"unknown class {name[:40]!r}")
        return codecs[name].decode(raw)

    pair: Any = tuple[str, msgspec.Raw]
    return Codec(pair | None if is_optional else pair, down, _unless_none(up))


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


def _is_known(kind: Any) -> bool:
    """Return True if msgspec can decode the class `kind` and all its fields directly, and no field contains a Post."""
    try:
        hints = get_type_hints(kind)
        if any(hint is Post for hint in _parts(hints.values())):
            return False
        msgspec.msgpack.Decoder(kind, dec_hook=_read_other)
    except (TypeError, NameError):
        return False
    return True


def _parts(hints: Iterable[Any]) -> Iterable[Any]:
    for hint in hints:
        yield hint
        yield from _parts(get_args(hint))


def _if(kind: type, convert: Convert) -> Convert:
    """Return a function that applies `convert` to values of the class `kind`, and returns other values unchanged.

    The called method then raises an error for these.
    """
    return lambda value: convert(value) if isinstance(value, kind) else value


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _location(location: Any) -> str:
    """Return a folder as a URI or an absolute path: the other process may have another working directory."""
    folder = folder_of(location)
    return str(folder.path.absolute()) if folder.is_local else folder.full_uri


def _path_or_folder(text: str) -> Path | ObjectFolder:
    folder = folder_of(text)
    return folder.path if folder.is_local else folder


@cache
def _late_names() -> dict[str, Any]:
    """Return types whose modules a store imports only when it uses them."""
    from cablestore.export import Filters, ImportSummary, Manifest  # noqa: PLC0415 - most programs do not need it
    from cablestore.store.changes import Change, Changes  # noqa: PLC0415 - the same

    return {
        "Change": Change,
        "Changes": Changes,
        "Filters": Filters,
        "ImportSummary": ImportSummary,
        "Manifest": Manifest,
    }


def hints_of(function: Any) -> dict[str, Any]:
    """Return the types of a function's parameters and of its result."""
    return get_type_hints(function, None, _late_names())


def _write_other(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise ArgumentError(f"invalid argument: a {type(value).__name__} cannot be sent to another process")


def _read_other(kind: type, found: Any) -> Any:
    if kind is Path and isinstance(found, str):
        return Path(found)
    if get_origin(kind) is Counter or kind is Counter:
        return Counter(found)
    raise msgspec.ValidationError(f"unexpected type {type(found).__name__}")


@cache
def _decoder(wire: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(wire, dec_hook=_read_other)


_OWN: Final[dict[Any, Callable[[Dialect], Codec]]] = {Post: _post_codec, Channel: _channel_codec}
_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_write_other)

"""Events and pool settings as JSON values and back: the words in which a pool's log is written.

An event is a list `[kind, now, field, ...]`: its class's name, then its fields in their order,
values inside values as lists too. A pool's settings are an object by name. Decoding is strict: what
is not exactly what encoding gives is an error, so a damaged log cannot pass for another history.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from operator import attrgetter
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fairness.events import Effect, Event, Input
from fairness.types import PoolConfig, Prices

Json = Any
Encode = Callable[[Any], Json]
Decode = Callable[[Json], Any]


class CodecError(ValueError):
    """A JSON value is no event or no settings; the message names the kind and the field."""


class _Codec:
    """Encodes and decodes one dataclass as a list of its fields."""

    def __init__(self, cls: type[Any]) -> None:
        hints = get_type_hints(cls)
        self.names = [field.name for field in fields(cls)]
        self.decoders = [_decoder(hints[name]) for name in self.names]
        self._cls = cls
        self._values = attrgetter(*self.names)
        encoders = ((i, _encoder(hints[name])) for i, name in enumerate(self.names))
        self._special = [(i, encode) for i, encode in encoders if encode is not None]

    def encode(self, value: Any) -> list[Json]:
        """The values of all fields; of a class of one field as well."""
        found = self._values(value)
        items = list(found) if len(self.names) > 1 else [found]
        for index, encode in self._special:
            items[index] = encode(items[index])
        return items

    def decode(self, items: Json) -> Any:
        """The value of which `items` are the fields. Raises CodecError."""
        name = self._cls.__name__
        if not isinstance(items, list) or len(items) != len(self.names):
            raise CodecError(f"{name}: wants a list of {len(self.names)} fields")
        values = []
        for field, decode, item in zip(self.names, self.decoders, items, strict=True):
            try:
                values.append(decode(item))
            except CodecError as error:
                raise CodecError(f"{name}.{field}: {error}") from None
        try:
            return self._cls(*values)
        except ValueError as error:
            raise CodecError(f"{name}: {error}") from None


def _encoder(hint: Any) -> Encode | None:
    """How to encode a field of this type; None where the value is JSON as it is."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _Codec(hint).encode
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: value.value
    return list if get_origin(hint) is tuple else None


def _decoder(hint: Any) -> Decode:
    if is_dataclass(hint) and isinstance(hint, type):
        return _Codec(hint).decode
    if get_origin(hint) in {Union, UnionType}:
        return _optional(*get_args(hint))
    if get_origin(hint) is tuple:
        return _list_of(_decoder(get_args(hint)[0]))
    if issubclass(hint, StrEnum):
        return _member_of(hint)
    return {int: _integer, float: _number, str: _text}[hint]


def _integer(value: Json) -> int:
    if type(value) is not int:
        raise CodecError(f"{value!r} is no integer")
    return value


def _number(value: Json) -> float:
    if type(value) is not float and type(value) is not int:
        raise CodecError(f"{value!r} is no number")
    if not float("-inf") < value < float("inf"):
        raise CodecError(f"{value!r} is not finite")
    return float(value)


def _text(value: Json) -> str:
    if type(value) is not str:
        raise CodecError(f"{value!r} is no string")
    return value


def _member_of(enum: type[StrEnum]) -> Decode:
    def decode(value: Json) -> StrEnum:
        if type(value) is not str or value not in enum.__members__.values():
            raise CodecError(f"{value!r} is none of {', '.join(enum)}")
        return enum(value)

    return decode


def _list_of(decode: Decode) -> Decode:
    def decode_all(value: Json) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise CodecError(f"{value!r} is no list")
        return tuple(decode(item) for item in value)

    return decode_all


def _optional(first: Any, second: Any) -> Decode:
    """Of `X | None`: the one kind of union that events have."""
    if second is not type(None):
        raise TypeError(f"no codec for a choice of {first} and {second}")
    decode = _decoder(first)
    return lambda value: None if value is None else decode(value)


_INPUTS: tuple[type[Any], ...] = get_args(Input)
_EFFECTS: tuple[type[Any], ...] = get_args(Effect)
_CODECS = {cls: _Codec(cls) for cls in (*_INPUTS, *_EFFECTS)}
_BY_KIND = {cls.__name__: codec for cls, codec in _CODECS.items()}


def kind(event: Event) -> str:
    """The word for the event in a log: its class's name."""
    return type(event).__name__


def is_input(event: Event) -> bool:
    """Whether the event came from outside, and was not what followed from one that did."""
    return isinstance(event, _INPUTS)


def encode_event(event: Event) -> list[Json]:
    """The event as a JSON value."""
    cls = type(event)
    return [cls.__name__, *_CODECS[cls].encode(event)]


def decode_event(value: Json) -> Event:
    """The event that was encoded as `value`. Raises CodecError."""
    if not isinstance(value, list) or not value or type(value[0]) is not str:
        raise CodecError("an event is a list that begins with its kind")
    codec = _BY_KIND.get(value[0])
    if codec is None:
        raise CodecError(f"there is no event of kind {value[0]!r}")
    event: Event = codec.decode(value[1:])
    return event


def encode_config(config: PoolConfig) -> dict[str, Json]:
    """The settings as an object, the prices as an object inside."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    prices = {field.name: getattr(config.prices, field.name) for field in fields(config.prices)}
    return values | {"prices": prices}


def decode_config(value: Json) -> PoolConfig:
    """The settings that were encoded as `value`. Raises CodecError."""
    values = _named(PoolConfig, value)
    prices: Prices = _object(Prices, values["prices"])
    config: PoolConfig = _object(PoolConfig, {**values, "prices": _Codec(Prices).encode(prices)})
    return config


def _object(cls: type[Any], value: Json) -> Any:
    named = _named(cls, value)
    return _Codec(cls).decode([named[field.name] for field in fields(cls)])


def _named(cls: type[Any], value: Json) -> Mapping[str, Json]:
    """The object, if it has exactly the fields of `cls`."""
    if not isinstance(value, dict):
        raise CodecError(f"{cls.__name__}: {value!r} is no object")
    names = {field.name for field in fields(cls)}
    for name in sorted(names ^ value.keys()):
        problem = "is missing" if name in names else "is unknown"
        raise CodecError(f"{cls.__name__}.{name} {problem}")
    return value

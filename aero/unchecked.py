"""What `aero.config` uses of pydantic, for a machine without it, such as a borrowed one with PyTorch alone.

Values must have the declared types, unknown keys are refused and the models' own validators run; ranges and choices are
not checked. Where pydantic is installed this module is not loaded.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, Self

_REQUIRED: Any = object()
_EXACT = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


@dataclass(frozen=True)
class FieldInfo:
    """Only the default is kept of a field's declaration."""

    default: Any = _REQUIRED


def Field(default: Any = _REQUIRED, **_constraints: Any) -> Any:
    return FieldInfo(default)


def ConfigDict(**settings: Any) -> dict[str, Any]:
    return settings


class ValidationError(ValueError):
    """One fault, in the form in which pydantic tells of several."""

    def __init__(self, place: tuple[str | int, ...], message: str, value: Any) -> None:
        super().__init__(message)
        self.place, self.message, self.value = place, message, value

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": self.place, "msg": self.message, "input": self.value}]

    def error_count(self) -> int:
        return 1


@dataclass(frozen=True)
class _Validator:
    function: Callable[..., Any]
    fields: tuple[str, ...] = ()  # none: the whole model
    before: bool = False


def field_validator(*fields: str) -> Callable[[Any], _Validator]:
    return lambda method: _Validator(method.__func__, fields)


def model_validator(mode: Literal["before", "after"]) -> Callable[[Any], _Validator]:
    if mode == "before":
        return lambda method: _Validator(method.__func__, before=True)
    return lambda method: _Validator(method)


class BaseModel:
    """Values by name, of the types of the class's annotations."""

    model_fields: typing.ClassVar[dict[str, FieldInfo]] = {}
    _validators: typing.ClassVar[list[_Validator]] = []

    def __init_subclass__(cls) -> None:
        names = [name for name in cls.__dict__.get("__annotations__", {}) if name != "model_config"]
        declared = {name: cls.__dict__.get(name, _REQUIRED) for name in names}
        own = {name: value if isinstance(value, FieldInfo) else FieldInfo(value) for name, value in declared.items()}
        bases = [base for base in reversed(cls.__bases__) if issubclass(base, BaseModel)]
        cls.model_fields = {name: field for base in bases for name, field in base.model_fields.items()} | own
        cls._validators = [validator for base in bases for validator in base._validators] + [
            value for value in cls.__dict__.values() if isinstance(value, _Validator)
        ]

    def __init__(self, **values: Any) -> None:
        for validator in self._validators:
            if validator.before:
                values = _told(validator.function, (), type(self), values)
        for name in values:
            if name not in self.model_fields:
                raise ValidationError((name,), "Extra inputs are not permitted", values[name])
        hints = _hints(type(self))
        for name, field in self.model_fields.items():
            if name not in values and field.default is _REQUIRED:
                raise ValidationError((name,), "Field required", values)
            value = field.default
            if name in values:
                value = _convert(hints[name], values[name], (name,))
                for validator in self._validators:
                    if name in validator.fields:
                        value = _told(validator.function, (name,), type(self), value)
            self.__dict__[name] = value
        for validator in self._validators:
            if not validator.fields and not validator.before:
                _told(validator.function, (), self)

    @classmethod
    def model_validate(cls, values: dict[str, Any]) -> Self:
        return cls(**values)

    def model_dump(self, exclude: Collection[str] = ()) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self.model_fields if name not in exclude}

    def model_copy(self, update: dict[str, Any]) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__ | update)
        return other

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__


@functools.cache
def _hints(model: type[BaseModel]) -> dict[str, Any]:
    return typing.get_type_hints(model)


def _convert(hint: Any, value: Any, place: tuple[str | int, ...]) -> Any:
    """`value` as the type `hint`; ValidationError, naming the place, if it cannot be."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = tuple(part for part in inner if part is not types.NoneType)
        return value if value is None or len(inner) > 1 else _convert(inner[0], value, place)
    try:
        if origin is tuple and isinstance(value, str):
            raise ValidationError(place, "Input should be a valid tuple", value)
        if origin is tuple:
            parts = enumerate(value)
            repeated = len(inner) == 2 and inner[1] is ...
            return tuple(_convert(inner[0 if repeated else i], part, (*place, i)) for i, part in parts)
        if origin is list:
            return [_convert(inner[0], part, (*place, i)) for i, part in enumerate(value)]
        if origin is dict:
            return {key: _convert(inner[1], part, (*place, key)) for key, part in value.items()}
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            return value if isinstance(value, hint) else _nested(hint, value, place)
        if hint in _EXACT and type(value) not in _EXACT[hint]:
            raise ValidationError(place, f"Input should be a valid {hint.__name__}", value)
        return hint(value) if hint is float else value
    except ValidationError:
        raise
    except (TypeError, ValueError, AttributeError, IndexError):
        raise ValidationError(place, f"Input should be {hint}", value) from None


def _nested(model: type[BaseModel], values: Any, place: tuple[str | int, ...]) -> BaseModel:
    try:
        return model(**values)
    except ValidationError as error:
        raise ValidationError((*place, *error.place), error.message, error.value) from None


def _told(function: Callable[..., Any], place: tuple[str | int, ...], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError as error:
        raise ValidationError(place, str(error), {}) from None


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(part) for part in value)
    return value

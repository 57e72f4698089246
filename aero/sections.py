"""What sections of `params.yaml` are made of: the base of their models, and the kinds of numbers and names in them."""

from __future__ import annotations

from typing import Annotated, Any

__all__ = ["CHECKED", "BaseModel", "CorpusKey", "Decay", "Field", "Name", "NotNegative", "Positive", "Strict"]
__all__ += ["ValidationError", "field_validator", "model_validator"]

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

    CHECKED = True
except ModuleNotFoundError:
    from aero.unchecked import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

    CHECKED = False

LARGEST = 10**15  # beyond it counts would leave the range of floats and of NumPy's integers
Positive = Annotated[int, Field(gt=0, le=LARGEST)]
NotNegative = Annotated[int, Field(ge=0, le=LARGEST)]
CorpusKey = Annotated[str, Field(pattern="^[a-z0-9_]+$")]  # names a folder and a pipeline stage
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$", max_length=100)]  # stands in commands of dvc.yaml
Decay = Annotated[float, Field(ge=0, lt=1)]


class Strict(BaseModel):
    """A section whose values have the types that it says: neither "12" nor true is a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, values: Any) -> Any:
        """YAML and JSON know no tuples, and strict fields take no list for one."""
        return _tuples(values)


def _tuples(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _tuples(value) for name, value in values.items()}
    return tuple(map(_tuples, values)) if isinstance(values, list) else values

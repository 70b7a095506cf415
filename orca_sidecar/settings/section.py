"""What every section of the configuration has in common."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A mapping of the file: immutable, its keys camelCase, unknown ones refused, one docstring a key.

    In Python a section may be made with attribute names; the loader takes the YAML names alone.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        use_attribute_docstrings=True,
    )


def sections(model: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Every section from ``model`` down, with its key path ("" for ``model`` itself)."""
    yield prefix.rstrip("."), model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from sections(field.annotation, f"{prefix}{field.alias}.")


def keys(model: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """Every key that holds a value rather than a section, with its key path."""
    nested = {path for path, _ in sections(model)}
    for path, section in sections(model):
        for field in section.model_fields.values():
            key = f"{path}.{field.alias}".lstrip(".")
            if key not in nested:
                yield key, field

"""What all sections of a configuration have in common: types of values, and the frozen base class."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _refuse_bool(value: object) -> object:
    # pydantic reads true as 1; a person who wrote `warmup_steps: yes` did not mean one step.
    if isinstance(value, bool):
        raise ValueError("a number is needed here, not yes/no")
    return value


Int = Annotated[int, BeforeValidator(_refuse_bool)]
Float = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
Count = Annotated[Int, Field(ge=1)]
Length = Annotated[Int, Field(ge=0)]
Probability = Annotated[Float, Field(ge=0.0, lt=1.0)]

TextList = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""A list of texts; one text stands for a list of one."""

Problem = tuple[str, str]  # (dotted key, what is wrong and what to do)


class Section(BaseModel):
    """Base of all sections: frozen, documented under each field, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),  # `model_type` is sentencepiece's own word
    )

    def problems(self) -> list[Problem]:
        """Faults that show only when several keys of this section are read together."""
        return []

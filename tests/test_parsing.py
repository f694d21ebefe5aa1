import pytest

from moeir.errors import UsageError
from moeir.parsing import parse_value


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("7", "int", 7),
        ("-7", "int", -7),
        ("1e-5", "float", 1e-5),
        ("7", "float", 7.0),
        ("007", "str", "007"),
        ("none", "str", "none"),
        ("TRUE", "bool", True),
        ("off", "bool", False),
        ("0", "bool", False),
        ("a+b", "tuple[str, ...]", ("a", "b")),
        ("", "tuple[str, ...]", ()),
        ("None", "int | None", None),
        ("", "float | None", None),
        ("3", "int | None", 3),
        ("none", "str | None", None),
        ("", "str | None", ""),  # --query-prefix "" takes away the prefix that the weights bring
    ],
)
def test_text_becomes_the_value_it_says(text, annotation, value):
    parsed = parse_value(text, annotation, "place")
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation", "message"),
    [
        ("7.0", "int", "--depth: expected a whole number, found '7.0'"),
        ("many", "int", "--depth: expected a whole number, found 'many'"),
        ("", "int", "--depth: expected a whole number, found ''"),
        ("1,5", "float", "--depth: expected a number, found '1,5'"),
        ("nan", "float", "--depth: expected a number, found 'nan'"),
        ("-inf", "float", "--depth: expected a number, found '-inf'"),
        ("1e999", "float", "--depth: expected a number, found '1e999'"),
        ("maybe", "bool", "--depth: expected true or false, found 'maybe'"),
    ],
)
def test_text_that_says_no_such_value_is_refused(text, annotation, message):
    with pytest.raises(UsageError) as caught:
        parse_value(text, annotation, "--depth")
    assert str(caught.value) == message

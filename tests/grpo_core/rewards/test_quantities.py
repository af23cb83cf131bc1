from fractions import Fraction

import pytest

from grpo_core.rewards.quantities import Quantity, are_equal, quantity, unit_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", Fraction(42)),
        ("-1,234.5", Fraction(-12345, 10)),
        ("$-5", Fraction(-5)),
        ("-$5", Fraction(-5)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("3/4", Fraction(3, 4)),
        ("2 1/2", Fraction(5, 2)),
        (r"-2\frac{1}{2}", Fraction(-5, 2)),
        (r"\frac34", Fraction(3, 4)),
        (r"1.5 \times 10^{-3}", Fraction(15, 10_000)),
        ("2E4", Fraction(20_000)),
        (r"7\%", Fraction(7)),
        ("7 percent", Fraction(7)),
        (r"7\text{ cm}^2", Fraction(7)),
        ("7 km/h", Fraction(7)),
        ("7 miles per hour", Fraction(7)),
        ("7 cookies", Fraction(7)),
        ("7 pt", Fraction(7)),
    ],
)
def test_numbers_are_read_exactly(text: str, expected: Fraction) -> None:
    found = quantity(text)
    assert found is not None and found.value == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1,23",
        "--5",
        "1/0",
        "5 million",
        "5x",
        "1e9999",
        "4_2",
        "0x10",
        "\uff14\uff12",
        "1 2",
        "5 and 6",
        "1+1",
        "$5$",
        "nan",
        "5x/x",
        "5 a-b",
        "5xy",
        "5 cm/cm",
        "[5,5]",
        "7=5",
    ],
)
def test_anything_else_is_no_number(text: str) -> None:
    assert quantity(text) is None


def test_a_letter_is_a_unit_after_an_answer_and_a_variable_after_a_reference() -> None:
    assert quantity("5 m") == Quantity(Fraction(5), unit="m")
    assert quantity("5 m", is_reference=True) is None
    assert quantity(r"5\text{ m}", is_reference=True) == Quantity(Fraction(5), unit="m")


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        ("1/3", "0.333333", True),
        ("1/3", "0.33333", False),
        ("0.333333", "0.3333330001", False),
        ("5", "5.0000001", False),
        ("12%", "12", True),
        ("0.12", "12%", True),
        ("0.5", "0.5%", False),
        ("12", "1200%", True),
        ("5 cm", "5 centimeters", True),
        ("5 cm", "5 km", False),
        ("5 apples", "5 pears", True),
        ("$5", "5 dollars", True),
        ("$5", "\u20ac5", False),
    ],
)
def test_equality_of_quantities(reference: str, found: str, expected: bool) -> None:
    left, right = quantity(reference), quantity(found)
    assert left is not None and right is not None
    assert are_equal(left, right) == expected


def test_units_have_one_name() -> None:
    assert (unit_of("Centimeters"), unit_of("miles per hour"), unit_of("sec."), unit_of("apples")) == ("cm", "mph", "s", "")

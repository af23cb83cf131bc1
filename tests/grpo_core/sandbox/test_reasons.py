import pytest

from grpo_core.sandbox.reasons import MAX_REASON, plain


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("raised ValueError", "raised ValueError"),
        ("raised \ud800x", "raised ?x"),
        ("two\nlines\tand \x1b[31mred\0", "two lines and ?[31mred?"),
        ("backwards \u202e", "backwards ?"),
        ("é \u4e2d", "é \u4e2d"),
    ],
)
def test_a_reason_is_one_line_that_any_table_takes(said: str, text: str) -> None:
    assert plain(said) == text
    plain(said).encode()


def test_a_reason_is_short() -> None:
    assert plain("x" * 10**6) == "x" * (MAX_REASON - 1) + "…"
    assert plain("x" * MAX_REASON) == "x" * MAX_REASON

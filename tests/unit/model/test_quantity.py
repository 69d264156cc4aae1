import pytest

from hoss.errors import InvalidInput
from hoss.model.quantity import ZERO, Notation, Quantity, parse_quantity, read_quantity, whole_number


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    [
        ("4", 4, 4000),
        ("500m", 1, 500),
        ("2Gi", 2**31, 2**31 * 1000),
        ("1e3", 1000, 10**6),
        ("1E3", 1000, 10**6),
        ("1E", 10**18, 10**21),
        (".5", 1, 500),
        ("5.", 5, 5000),
        ("-1.5", -2, -1500),
    ],
)
def test_numbers_are_read_exactly_and_rounded_away_from_zero(text, value, milli):
    quantity = parse_quantity(text)
    assert (quantity.value, quantity.milli) == (value, milli)


@pytest.mark.parametrize("text", ["0.0000000001", "1e-1000", "0.1n", "0.0000000000001Ki"])
def test_asking_for_something_never_becomes_nothing(text):
    assert parse_quantity(text).nano == 1
    assert parse_quantity("-" + text).nano == -1


@pytest.mark.parametrize("text", ["+", "-", ".", "m", "Ki", "e3", "-.k"])
def test_missing_digits_mean_zero(text):
    assert parse_quantity(text).nano == 0
    assert parse_quantity(text).normalized == "0"


def test_binary_suffixes_stop_at_63_bits_and_decimal_ones_do_not():
    assert parse_quantity("8Ei").value == 2**63 - 1
    assert parse_quantity("-16Ei").value == -(2**63) + 1
    assert parse_quantity("16E").value == 16 * 10**18


@pytest.mark.parametrize(
    "text",
    [
        "2GiB",
        "1kB",
        "1KI",
        "1K",
        "1 Gi",
        "1\n",
        "\uff11",
        "1e3m",
        "1e",
        "1e-",
        "+-1",
        "1..2",
        "0x10",
        "NaN",
        "inf",
    ],
)
def test_an_unknown_suffix_is_named_with_the_ones_that_exist(text):
    with pytest.raises(
        InvalidInput, match=r"unknown suffix .*; suffixes are n, u, m, k, M, .*Gi.* or an exponent"
    ) as refusal:
        parse_quantity(text)
    assert repr(text) in str(refusal.value)


def test_the_error_names_the_text_and_the_suffix():
    with pytest.raises(InvalidInput, match="'2GiB' is no quantity: unknown suffix 'GiB'"):
        parse_quantity("2GiB")


@pytest.mark.parametrize("text", ["", "9" * 5000, "1e99999", "1e-99999", "Ei", "+.Pi", "-e-10"])
def test_empty_and_absurd_texts_are_refused(text):
    with pytest.raises(InvalidInput):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("given", "nano"), [(2, 2 * 10**9), (0.5, 5 * 10**8), (1e20, 10**29), ("1k", 10**12)]
)
def test_manifests_may_give_bare_numbers(given, nano):
    assert read_quantity(given).nano == nano


@pytest.mark.parametrize("given", [True, None, [], {}, float("nan"), float("inf")])
def test_what_is_no_number_is_refused(given):
    with pytest.raises(InvalidInput):
        read_quantity(given)


def test_a_sum_is_written_as_its_first_part_that_is_not_zero():
    kibi, decimal = parse_quantity("1Ki"), parse_quantity("1k")
    assert kibi.plus(kibi).normalized == "2Ki"
    assert kibi.plus(decimal).notation is Notation.BINARY
    assert ZERO.plus(kibi).notation is Notation.BINARY
    assert decimal.plus(kibi).normalized == "2024"


def test_a_binary_number_below_1024_or_with_a_fraction_is_written_decimal():
    assert parse_quantity("0.5Ki").normalized == "512"
    assert parse_quantity("1.3Ki").normalized == "1331200m"
    assert Quantity(1024 * 10**9, Notation.BINARY).normalized == "1Ki"


def test_decimal_suffixes_end_at_exa_and_exponents_do_not():
    assert parse_quantity("1000E").normalized == "1000E"
    assert parse_quantity("1000e18").normalized == "1e21"


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("9" * 20, 10**20 - 1), ("9" * 21, None), ("", None), ("-1", None), ("٣", None)],
)
def test_a_whole_number_is_a_text_of_ascii_digits_of_a_bounded_length(text, number):
    assert whole_number(text) == number

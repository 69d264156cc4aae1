from decimal import ROUND_UP, localcontext

from hypothesis import example, given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity as parse_decimal

from hoss.errors import InvalidInput
from hoss.model.quantity import NANO, Notation, Quantity, parse_quantity

signs = st.sampled_from(["", "+", "-"])
digits = st.text("0123456789", min_size=1, max_size=18)
numbers = st.builds(
    "".join,
    st.tuples(
        signs,
        digits,
        st.sampled_from(["", "."]).flatmap(lambda d: st.just(d) if not d else digits.map(d.__add__)),
    ),
)
decimal_suffixes = st.sampled_from(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"])
binary_suffixes = st.sampled_from(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
exponents = st.integers(-20, 20).map("e{}".format)
spellings = st.builds("{}{}".format, numbers, decimal_suffixes | binary_suffixes | exponents)
quantities = spellings.map(parse_quantity)


@given(numbers, decimal_suffixes | binary_suffixes)
@example("0.0000000001", "")
@example("9", "Ei")
def test_the_kubernetes_packages_exact_number_is_the_one_read_after_rounding_and_cap(number, suffix):
    with localcontext() as context:
        context.prec = 200
        context.Emin, context.Emax = -999, 999
        exact = parse_decimal(number + suffix)
        nano = int((exact * NANO).to_integral_value(ROUND_UP))
    if suffix.endswith("i"):
        cap = (2**63 - 1) * NANO
        nano = max(-cap, min(cap, nano))
    assert parse_quantity(number + suffix).nano == nano


@given(quantities)
def test_the_normalized_spelling_means_the_same_and_is_its_own(quantity):
    again = parse_quantity(quantity.normalized)
    assert again.nano == quantity.nano
    assert again.normalized == quantity.normalized


@given(quantities)
def test_the_canonical_spelling_means_the_same(quantity):
    assert parse_quantity(quantity.canonical).nano == quantity.nano


@given(quantities)
def test_value_and_milli_are_the_nearest_away_from_zero(quantity):
    for rounded, unit in ((quantity.value, NANO), (quantity.milli, NANO // 1000)):
        assert 0 <= (abs(rounded) * unit) - abs(quantity.nano) < unit
        assert rounded * quantity.nano >= 0


@given(quantities, quantities)
def test_sums_are_exact_and_commute(a, b):
    assert a.plus(b).nano == b.plus(a).nano == a.nano + b.nano


@given(st.text(max_size=12) | st.text("0123456789+-.eEinumkKMGTP ", max_size=12))
def test_any_text_is_a_quantity_or_refused_input(text):
    assert outcome(text) in ("read", "refused by name")


def outcome(text):
    try:
        return "read" if isinstance(parse_quantity(text), Quantity) else "something else"
    except InvalidInput as refusal:
        return "refused by name" if repr(text) in str(refusal) else str(refusal)


# Within what a binary suffix can say.
@given(st.integers(-(9 * 10**27), 9 * 10**27), st.sampled_from(Notation))
def test_every_number_has_a_spelling_in_every_notation(nano, notation):
    assert parse_quantity(Quantity(nano, notation).normalized).nano == nano

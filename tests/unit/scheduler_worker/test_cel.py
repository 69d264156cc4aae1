"""The expressions by which claims select devices: values, errors in cel-go's words, and limits."""

import pytest

from hoss.model.devices import Device, DeviceCapacity, NodeReach, ResourceSlice, VersionText
from hoss.model.quantity import parse_quantity
from scheduler_worker.core.devices.cel import CelExpression
from scheduler_worker.core.devices.cel_syntax import CelSyntaxError
from scheduler_worker.core.devices.cel_values import CelError, parse_version
from scheduler_worker.core.devices.pools import OfferedDevice

DEVICE = Device(
    "gpu-0",
    attributes=(
        ("cores", 64),
        ("ecc", True),
        ("model", "a100"),
        ("resource.kubernetes.io/pcieRoot", "pci0000:01"),
        ("version", VersionText("1.10.3-rc.1")),
    ),
    capacity=(("memory", DeviceCapacity(parse_quantity("40Gi"))),),
)
OFFERED = OfferedDevice.of(
    DEVICE, ResourceSlice("s", "gpu.example.com", "p", 1, 1, NodeReach(all_nodes=True), (DEVICE,))
)
A = 'device.attributes["gpu.example.com"]'


def value(text):
    return CelExpression(text, frozenset({"device"})).evaluate({"device": OFFERED.variables})


@pytest.mark.parametrize(
    "text",
    [
        'device.driver == "gpu.example.com"',
        f"{A}.cores == 64 && {A}.cores >= 64u && {A}.cores < 64.5",
        f"{A}.ecc && !device.allowMultipleAllocations",
        f'{A}.model in ["a100", "h100"] && "model" in {A}',
        f'{A}.model.matches("^[ah]100$") && {A}["model"].startsWith("a")',
        'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:01"',
        'device.attributes["nowhere"].size() == 0',
        f"!has({A}.fabric) && has({A}.ecc)",
        f"{A}.?fabric.orValue(7) == 7 && {A}[?'cores'].orValue(7) == 64",
        f"!{A}.?fabric.hasValue() && {A}.?cores.optMap(c, c + 1).value() == 65",
        f"cel.bind(a, {A}, a.cores >= 32 && a.model != 't4')",
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) == 0',
        'device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("42949672959"))',
        'quantity("1.5Gi").add(quantity("512Mi")) == quantity("2Gi") && quantity("2k").asInteger() == 2000',
        f'{A}.version.isLessThan(semver("1.10.3")) && {A}.version.isGreaterThan(semver("1.9.9"))',
        f"{A}.version.major() == 1 && {A}.version.minor() == 10 && {A}.version.patch() == 3",
        'semver("v1.2", true) == semver("1.2.0") && !isSemver("01.2.3") && isSemver("1.2.3+b")',
        "[1, 2, 3].all(x, x > 0) && [1, 2].exists_one(x, x == 2) && [1, 2].map(x, x * x) == [1, 4]",
        "[1, 2, 3].filter(x, x % 2 == 1).size() == 2 && {'a': 1}.exists(k, k == 'a')",
        "-7 / 2 == -3 && -7 % 2 == -1 && 7.0 / 2.0 == 3.5 && --1 == 1 && !!true",
        "1 == 1.0 && 1u == 1 && '1' != 1 && true != 1 && [1] == [1.0]",
        r"'a\u00e9\n' == 'aé' + '\x0a' && r'\n'.size() == 2 && b'a'.size() == 1",
        "string(1) == '1' && int('12') == 12 && double('0.5') == 0.5 && string(true) == 'true'",
        "(false ? 1 : 2) == 2 && (true ? true : false)  // with a comment",
        "'a,b'.split(',').join('-') == 'a-b' && 'Ab'.lowerAscii() == 'ab' && 'abc'.substring(1) == 'bc'",
        "sets.contains([1, 2], [2]) && !sets.intersects([1], [2]) && sets.equivalent([1, 1], [1])",
        "type(1) == type(2) && dyn(1) == 1",
    ],
)
def test_an_expression_is_true(text):
    assert value(text) is True


@pytest.mark.parametrize("text", [f"true || {A}.none", f"{A}.none || true", "[0, 1].exists(x, 1 / x == 1)"])
def test_or_is_true_whatever_fails_beside_what_is_true(text):
    assert value(text) is True


@pytest.mark.parametrize("text", [f"false && {A}.none", f"{A}.none && false", "[0, 1].all(x, 1 / x == 2)"])
def test_and_is_false_whatever_fails_beside_what_is_false(text):
    assert value(text) is False


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f'{A}.colour == "red"', "no such key: colour"),
        (f"{A}.none || false", "no such key: none"),
        (f"{A}.model > 5", "no such overload"),
        (f"{A}.model && true", "no such overload"),
        ("1 / 0 == 1", "division by zero"),
        ("1 % 0 == 1", "modulus by zero"),
        ("9223372036854775807 + 1 == 0", "integer overflow"),
        ("[1][1] == 1", "index out of bounds: 1"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        (f"{A}.cores.matches('a')", "no such overload"),
        ("'a'.matches('(a+)+b')", "repeated groups and looking around are not supported"),
        ("'a'.matches('[')", "error parsing regexp"),
        ('quantity("x") == quantity("1")', "quantities must match the regular expression"),
    ],
)
def test_what_has_no_value_says_so_as_cel_go_does(text, problem):
    with pytest.raises(CelError, match=problem.replace("(", r"\(").replace(")", r"\)")):
        value(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "device.",
        "unknown == 1",
        "device.nothing()",
        "size(1, 2, 3)",
        "has(device)",
        "[1].all(1, true)",
        "'open",
        "a b",
        "for",
        "99999999999999999999 == 1",
        r"'\q'",
        "(" * 200 + "1" + ")" * 200,
        "1" + " + 1" * 200,
        "1 == 1 " + " " * 10_240,
    ],
)
def test_what_is_no_expression_is_told_before_it_is_evaluated(text):
    with pytest.raises(CelSyntaxError):
        value(text)


def test_an_expression_that_would_take_for_ever_is_given_up():
    some = "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32]"
    with pytest.raises(CelError, match="cost limit"):
        value(f"{some}.all(a, {some}.all(b, {some}.all(c, {some}.all(d, true))))")


def test_versions_are_ordered_as_semver_says():
    ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0"]
    versions = [parse_version(text) for text in [*ordered, "1.9.0", "1.10.0"]]
    assert sorted(versions, key=lambda v: v.order) == versions
    assert parse_version("1.0") is parse_version("1.0.0-01") is parse_version("1.0.0-") is None

"""Kubernetes' libraries of expressions: addresses, networks, URLs, formats, times, lists and pairs. Each row
is what kube-scheduler 1.36 answers."""

import struct
import zoneinfo

import pytest

from scheduler_worker.core.devices.cel import CelExpression
from scheduler_worker.core.devices.cel_syntax import CelSyntaxError
from scheduler_worker.core.devices.cel_values import CelError


def value(text):
    return CelExpression(text, frozenset({"device"})).evaluate({"device": {}})


TRUE = [
    "isIP('::1') && !isIP('1.2.3') && !isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0')",
    "ip('127.0.0.1').family() == 4 && ip('::1').family() == 6",
    "ip('127.0.0.1').isLoopback() && ip('0.0.0.0').isUnspecified() && ip('fe80::1').isLinkLocalUnicast()",
    "ip('224.0.0.7').isLinkLocalMulticast() && !ip('224.0.1.1').isLinkLocalMulticast()",
    "ip('ff02::1').isLinkLocalMulticast() && ip('192.168.0.1').isGlobalUnicast()",
    "!ip('255.255.255.255').isGlobalUnicast() && !ip('ff00::1').isGlobalUnicast()",
    "string(ip('2001:DB8:0::1')) == '2001:db8::1' && !ip.isCanonical('2001:DB8::1')",
    "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('::1'))",
    "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR('10.0.0.0/8')",
    "cidr('192.168.1.7/24').prefixLength() == 24",
    "string(cidr('192.168.1.7/24').masked()) == '192.168.1.0/24'",
    "cidr('192.168.1.7/24').ip() == ip('192.168.1.7') && cidr('10.0.0.1/8') != cidr('10.0.0.1/8').masked()",
    "!isCIDR('10.0.0.0') && !isCIDR('10.0.0.0/33') && isCIDR('::/0')",
    "isURL('/path') && isURL('mailto:a@b') && !isURL('example.com') && !isURL('http://h:port/')",
    "url('HTTPS://u@example.com:80/a b?k=1&k=2&z').getScheme() == 'https'",
    "url('https://u@example.com:80/').getHost() == 'example.com:80'",
    "url('http://[::1]:80/').getHostname() == '::1'",
    "url('https://example.com:80/').getPort() == '80' && url('/p').getPort() == ''",
    "url('https://h/with space/é').getEscapedPath() == '/with%20space/%C3%A9'",
    "url('https://h/a%20b').getEscapedPath() == '/a%20b'",
    "url('https://h/?k=1&k=a+b&z').getQuery() == {'k': ['1', 'a b'], 'z': ['']}",
    "!format.dns1123Label().validate('my-name').hasValue()",
    "format.dns1123Label().validate('My').hasValue()",
    "format.named('uuid').hasValue() && !format.named('nothing').hasValue()",
    "!format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
    "!format.date().validate('2026-01-02').hasValue() && format.date().validate('2026-13-02').hasValue()",
    "!format.qualifiedName().validate('example.com/a').hasValue() && format.byte().validate('%').hasValue()",
    "!format.dns1035LabelPrefix().validate('a-').hasValue()",
    "format.dns1035Label().validate('1a').hasValue()",
    "'%s: %d of %.2f, %x %b %o %%'.format(['a', 7, 2.5, 255, 5, 8]) == 'a: 7 of 2.50, ff 101 10 %'",
    "'%e'.format([0.00012]) == '1.200000\u00d710⁻⁰⁴'",
    "'%s'.format([[1, 'x', 2.5]]) == '[1, \"x\", 2.500000]'",
    "'%s'.format([{'b': 1, 'a': true}]) == '{\"a\":true, \"b\":1}'",
    "strings.quote('a\\n\"') == '\"a\\\\n\\\\\"\"'",
    "duration('90m') == duration('1h30m') && duration('1.5s').getMilliseconds() == 1500",
    "string(duration('-3ms')) == '-0.003s' && int(duration('1us')) == 1000",
    "duration('36h').getHours() == 36",
    "timestamp('2026-01-02T03:04:05Z') - timestamp('2026-01-02T03:04:00Z') == duration('5s')",
    "timestamp('2026-01-02T03:04:05Z') + duration('1h') > timestamp('2026-01-02T03:04:05+00:30')",
    "timestamp('2026-01-02T03:04:05Z').getMonth() == 0",
    "timestamp('2026-01-02T03:04:05Z').getDayOfWeek() == 5",
    "timestamp('2026-01-02T23:04:05Z').getHours('+02:00') == 1",
    "timestamp('2026-01-02T03:04:05Z').getDate() == 2",
    "int(timestamp('1970-01-01T00:01:00Z')) == 60 && timestamp(60) == timestamp('1970-01-01T00:01:00Z')",
    "[duration('1s'), duration('2s')].sum() == duration('3s')",
    "[duration('1s'), duration('2s')].max() > duration('1s')",
    "lists.range(3) == [0, 1, 2] && [[1], [2, 3]].flatten() == [1, 2, 3] && [[[1]]].flatten(2) == [1]",
    "['bb', 'a'].sortBy(x, size(x)) == ['a', 'bb'] && [1, 2, 1].lastIndexOf(1) == 2",
    "'abcab'.indexOf('ab', 1) == 3 && 'abcab'.lastIndexOf('ab', 2) == 0 && 'a'.indexOf('a', 5) == -1",
    "[1, 2].all(i, v, v == i + 1) && [1, 2].existsOne(i, v, v == 2)",
    "{'a': 1}.exists(k, v, k == 'a' && v == 1)",
    "'%f'.format([-2500.0]) == '-2,500.000000'",
    "['x', 'y'].transformList(i, v, string(i) + v) == ['0x', '1y']",
    "[1, 2, 3].transformList(i, v, i > 0, v) == [2, 3] && {'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
    "['a'].transformMapEntry(i, v, {v: i}) == {'a': 0} && [1, 2].transformMap(i, v, v > 1, v) == {1: 2}",
    "timestamp('2026-01-02T03:04:05Z').getHours('-07:30') == 19",
    "timestamp('2026-01-02T03:04:05Z').getDate('99:99') == 6 && timestamp(0).getHours('Local') == 0",
    "timestamp('9999-12-31T23:59:59Z').getDayOfYear('+02:00') == 0",
    "timestamp('0001-01-01T00:00:00Z').getFullYear('-01:30') == 0",
    # A result of add() has no overload right of ==, which makes != true and lists equal.
    "quantity('1').add(quantity('1')) == quantity('2') && quantity('2') != quantity('1').add(1)",
    "[quantity('1')] == [quantity('1').add(5)] && !(quantity('2') in [quantity('1').add(1)])",
    "!quantity('1000m').isInteger() && !quantity('1Ei').isInteger() && quantity('10Gi').isInteger()",
    # A sum is an integer if both parts are kept as integers, and if it has 64 bits.
    "quantity('2').add(quantity('3k')).asInteger() == 3002 && quantity('5').sub(7).asInteger() == -2",
    "!quantity('1500m').add(quantity('500m')).isInteger() && quantity('0').add(quantity('1')).isInteger()",
    "!quantity('1Ei').sub(quantity('1Ei')).isInteger() && !quantity('1').add(quantity('1Ei')).isInteger()",
    (
        "!quantity('1').add(9223372036854775807).isInteger() &&"
        " quantity('1').add(9223372036854775806).isInteger()"
    ),
    "!quantity('1').add(9223372036854775807).sub(9223372036854775807).isInteger()",
    "quantity('5').sub(-9223372036854775807 - 1).asInteger() == -9223372036854775803",  # a fault of Kubernetes
    "string(1000000.0) == '1e+06' && string(0.00001) == '1e-05'",
    "string(100.0) == '100' && string(1.5) == '1.5'",
    "dyn(9223372036854775807) == dyn(9223372036854775808.0)",
    "semver('v1.02', true) == semver('1.2.0') && !isSemver('1.2-a', true) && isSemver('1.2.3-a.1+b')",
]


@pytest.mark.parametrize("text", TRUE)
def test_expressions_that_are_true(text):
    assert value(text) is True


WORDS = [
    ("ip('1.2.3').family() == 4", 'ParseAddr("1.2.3"): IPv4 address too short'),
    (
        "ip('x').family() == 4",
        'IP Address "x" parse error during conversion from string: ParseAddr("x"): unable to parse',
    ),
    ("ip('fe80::1%eth0').family() == 4", 'IP address "fe80::1%eth0" with zone value is not allowed'),
    (
        "cidr('10.0.0.0/33').prefixLength() == 1",
        'netip.ParsePrefix("10.0.0.0/33"): prefix length out of range',
    ),
    ("cidr('10.0.0.0/8').containsIP('x')", "no such overload"),
    ("url('x').getHost() == ''", 'parse "x": invalid URI for request'),
    ("url('http://h:port/').getHost() == ''", 'invalid port ":port" after host'),
    ("quantity('2') == quantity('1').add(1)", "no such overload"),
    ("quantity('1Ei').asInteger() == 1", "cannot convert value to integer"),
    ("quantity('9223372036854775808').sub(1000).asInteger() > 5", "cannot convert value to integer"),
    ("semver('1.2.03').major() == 1", 'Patch number must not contain leading zeroes "03"'),
    ("semver('1.2.3-').major() == 1", "Prerelease is empty"),
    ("semver('1.2-a', true).major() == 1", "short version cannot contain PreRelease/Build meta data"),
    ("timestamp('9999-12-31T23:59:59Z') + duration('1s') == timestamp(0)", "timestamp overflow"),
    ("timestamp(0).getHours('Nowhere/City') == 0", "unknown time zone Nowhere/City"),
    ("timestamp(0).getHours('../etc') == 0", "time: invalid location name"),
    ("timestamp(0).getHours('a:b') == 0", 'strconv.Atoi: parsing "a": invalid syntax'),
    ("lists.range(2000000).size() == 2", "operation cancelled: actual cost limit exceeded"),
    (
        "lists.range(1000000).map(x, x).map(x, x).size() == 2",
        "operation cancelled: actual cost limit exceeded",
    ),
]


@pytest.mark.parametrize(("text", "words"), WORDS, ids=[text for text, _ in WORDS])
def test_errors_have_the_words_of_the_libraries(text, words):
    with pytest.raises(CelError) as raised:
        value(text)
    assert words in str(raised.value)


def test_times_are_told_in_a_time_zone_by_its_name(tmp_path):
    """A zone of the test's own, two hours east of Greenwich: a machine may know none."""
    ends = struct.pack(">4s16x6l", b"TZif", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 7200, 0, 0) + b"EST\0"
    (tmp_path / "Two").write_bytes(ends)
    zoneinfo.reset_tzpath([str(tmp_path)])
    try:
        assert value("timestamp('2026-01-31T23:30:00Z').getDate('Two') == 1")
        assert value("timestamp('9999-12-31T23:30:00Z').getFullYear('Two') == 10000")
    finally:
        zoneinfo.reset_tzpath()
        zoneinfo.ZoneInfo.clear_cache()


def test_two_variables_of_one_name_are_refused():
    with pytest.raises(CelSyntaxError, match="duplicate variable name: x"):
        value("[1].all(x, x, true)")

"""Addresses, networks and URLs in expressions (k8s.io/apiserver/pkg/cel/library: ip, cidr, urls).

They are read as Go's netip and net/url read them: an address has no zone, and IPv4 is not written as IPv6."""

import re
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import unquote_plus

from scheduler_worker.core.devices.cel_values import CelError, Value


@dataclass(frozen=True, slots=True)
class Ip:
    """An address."""

    address: IPv4Address | IPv6Address
    kind = "net.IP"

    def __str__(self) -> str:
        return str(self.address)

    @property
    def is_global_unicast(self) -> bool:
        """Go's IsGlobalUnicast: private addresses are global."""
        address = self.address
        special = address.is_unspecified or address.is_loopback or address.is_multicast or self.is_link_local
        return not special and str(address) != "255.255.255.255"

    @property
    def is_link_local(self) -> bool:
        """fe80::/10 and 169.254.0.0/16."""
        return self.address.is_link_local

    @property
    def is_link_local_multicast(self) -> bool:
        """ff02::/16 and its like, and 224.0.0.0/24."""
        packed = self.address.packed
        if self.address.version == 4:
            return packed[:3] == b"\xe0\x00\x00"
        return packed[0] == 0xFF and packed[1] & 0x0F == 0x02


@dataclass(frozen=True, slots=True)
class Cidr:
    """A network by an address in it, which keeps its own bits, and the length of its prefix."""

    address: IPv4Address | IPv6Address
    bits: int
    kind = "net.CIDR"

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    @property
    def masked(self) -> "Cidr":
        """With the first address of the network."""
        return Cidr(ip_network(str(self), strict=False).network_address, self.bits)

    def has(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether the address is in the network."""
        return address.version == self.address.version and address in ip_network(str(self), strict=False)

    def contains(self, other: "Cidr") -> bool:
        """Whether the other network is a part of this one."""
        return self.bits <= other.bits and self.has(other.address)


_LOOKS_LIKE_AN_ADDRESS = re.compile("[.:%]")


def parse_ip(text: str) -> Ip:
    """Raises CelError."""
    problem = f'IP Address "{text}" parse error during conversion from string: ParseAddr("{text}"): '
    if not _LOOKS_LIKE_AN_ADDRESS.search(text):
        raise CelError(f"{problem}unable to parse IP")
    try:
        address = ip_address(text)
    except ValueError:
        raise CelError(problem + ("unable to parse IP" if ":" in text else _no_v4(text))) from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise CelError(f'IP address "{text}" with zone value is not allowed')
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise CelError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return Ip(address)


def _no_v4(text: str) -> str:
    """Why a text is no IPv4 address, in Go's words."""
    wrong = re.search(r"[^0-9.]", text)
    if wrong is not None:
        return f'unexpected character (at "{text[wrong.start() :]}")'
    fields = text.split(".")
    for number, digits in enumerate(fields):
        if not digits:
            return f'IPv4 field must have at least one digit (at ".{".".join(fields[number + 1 :])}")'
        if len(digits) > 1 and digits[0] == "0":
            return "IPv4 field has octet with leading zero"
        if len(digits) > 3 or int(digits) > 255:
            return "IPv4 field has value >255"
    return "IPv4 address too long" if len(fields) > 4 else "IPv4 address too short"


def parse_cidr(text: str) -> Cidr:
    """Raises CelError."""
    outer = "network address parse error during conversion from string: "
    problem = f'{outer}{outer}netip.ParsePrefix("{text}"): '
    address, slash, bits = text.rpartition("/")
    if not slash:
        raise CelError(f"{problem}no '/'")
    try:
        found = parse_ip(address).address
    except CelError as exc:
        if "IPv4-mapped" in str(exc):
            raise CelError(f'{outer}IPv4-mapped IPv6 address "{text}" is not allowed') from None
        zoned = "with zone value" in str(exc)
        why = "IPv6 zones cannot be present in a prefix" if zoned else str(exc).partition("string: ")[2]
        raise CelError(problem + why) from None
    if not re.fullmatch("0|[1-9][0-9]?[0-9]?", bits, re.ASCII):
        raise CelError(f'{problem}bad bits after slash: "{bits}"')
    if int(bits) > found.max_prefixlen:
        raise CelError(f"{problem}prefix length out of range")
    return Cidr(found, int(bits))


def is_valid(parse: object, text: str) -> bool:
    """Whether the text can be parsed."""
    try:
        parse(text)  # type: ignore[operator]  # one of those above
    except CelError:
        return False
    return True


_URL = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?:(?P<authority>//[^/?#]*)?(?P<path>/[^?#]*)?)"
    r"(?P<opaque>[^?#]*)(?:\?(?P<query>[^#]*))?(?:\#(?P<fragment>.*))?",
    re.DOTALL,
)
_HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]*))?")
_UNESCAPED = re.compile(r"[^A-Za-z0-9\-_.~$&+,/:;=@!'()*\[\]]")
_BAD_HOST = re.compile(r"[\x00-\x20\"<>\\^`{|}\x7f#?@]")


@dataclass(frozen=True)
class Url:
    """A URL in its parts."""

    text: str
    scheme: str
    host: str
    path: str  # as it was written
    query: str
    kind = "kubernetes.URL"

    @property
    def hostname(self) -> str:
        """Without port and brackets."""
        match = _HOST.fullmatch(self.host)
        return "" if match is None else match["name"].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> str:
        match = _HOST.fullmatch(self.host)
        return "" if match is None else match["port"] or ""

    @property
    def escaped_path(self) -> str:
        """The path with what a URL cannot have in it as %xx."""
        if _PERCENT.search(self.path) and not _UNESCAPED.search(self.path.replace("%", "")):
            return self.path
        return _UNESCAPED.sub(
            lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode()), _unescape(self.path)
        )

    @cached_property
    def parameters(self) -> dict[str, list[Value]]:
        """Values by name, in their order. What cannot be read is left out."""
        found: dict[str, list[Value]] = {}
        for pair in self.query.split("&"):
            name, _, value = pair.partition("=")
            if pair and ";" not in pair and not _BAD_PERCENT.search(pair):
                found.setdefault(unquote_plus(name), []).append(unquote_plus(value))
        return found


_PERCENT = re.compile("%[0-9A-Fa-f]{2}")
_BAD_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


def _unescape(path: str) -> str:
    return _PERCENT.sub(lambda m: chr(int(m[0][1:], 16)), path)


def parse_url(text: str) -> Url:
    """Raises CelError. A URL has a scheme or begins with a slash (Go's ParseRequestURI)."""
    problem = f'URL parse error during conversion from string: parse "{text}": '
    if not text:
        raise CelError(f"{problem}empty url")
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise CelError(f"{problem}net/url: invalid control character in URL")
    if text == "*":
        return Url(text, "", "", text, "")
    match = _URL.fullmatch(text)
    if match is None or (not match["scheme"] and not text.startswith("/")):
        if text.startswith(":"):
            raise CelError(f"{problem}missing protocol scheme")
        raise CelError(f"{problem}invalid URI for request")
    # Without a scheme a request begins with its path, whatever follows the slash.
    host = (match["authority"] or "").removeprefix("//").rpartition("@")[2]
    if host_problem := _host_problem(host):
        raise CelError(problem + host_problem)
    bad = _BAD_PERCENT.search(match["path"] or "")
    if bad is not None:
        raise CelError(
            f'{problem}invalid URL escape "{(match["path"] or "")[bad.start() : bad.start() + 3]}"'
        )
    return Url(text, (match["scheme"] or "").lower(), host, match["path"] or "", match["query"] or "")


def _host_problem(host: str) -> str:
    """What is wrong with host and port; empty: nothing."""
    checked = _HOST.fullmatch(host)
    if checked is None and host.startswith("[") and "]" not in host:
        return "missing ']' in host"
    if checked is None and "[" not in host:
        return f'invalid port "{host[host.index(":") :]}" after host'
    if checked is None or _BAD_PERCENT.search(host):
        return f'invalid host name "{host}"'
    bad = _BAD_HOST.search(checked["name"])
    return "" if bad is None else f'invalid character "{bad[0]}" in host name'

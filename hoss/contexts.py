"""Contexts: the platforms that this user's clients know, with the certificate and token for each.

The file is contexts.json in the directory of `home`. `hoss up` and `hoss login` write it. A client finds its
context by the address that it connects to."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hoss.errors import ConfigError, TransportError, did_you_mean

LOCAL = "local"  # the context of the platform that `hoss up` started
_FILE = "contexts.json"


def home() -> Path:
    """The directory of this user's platform and contexts: $HOSS_HOME, $XDG_STATE_HOME/hoss, or ~/.hoss."""
    if given := os.environ.get("HOSS_HOME"):
        return Path(given)
    state_home = os.environ.get("XDG_STATE_HOME")
    return Path(state_home) / "hoss" if state_home else Path.home() / ".hoss"


@dataclass(frozen=True, slots=True)
class Context:
    """A platform, and how to reach it. Addresses as in --dispatcher and --resolver. `token_command` prints a
    token, where there is no `token`."""

    dispatcher: str = ""
    resolver: str = ""
    tls_dir: str = ""
    token: str = field(default="", repr=False)
    token_command: str = ""

    def has(self, addresses: Sequence[str]) -> bool:
        """Whether one of the addresses is this platform's."""
        return not {*self.dispatcher.split(","), *self.resolver.split(",")}.isdisjoint(addresses)


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contents of the file. `current`: the name of the context for commands without an address; "": the
    local platform."""

    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)

    def with_context(self, name: str, context: Context | None) -> "Contexts":
        """With this context added or replaced; None: without the one of that name."""
        others = {known: held for known, held in self.contexts.items() if known != name}
        kept = others if context is None else {**others, name: context}
        return replace(self, contexts=kept, current=self.current if self.current in kept else "")

    def using(self, name: str) -> "Contexts":
        """With another current context."""
        return replace(self, current=name)


def load_contexts(directory: Path) -> Contexts:
    """The contexts of a directory. Raises ConfigError for a damaged file."""
    path = directory / _FILE
    try:
        raw = json.loads(path.read_bytes())
        contexts = {name: Context(**fields) for name, fields in raw["contexts"].items()}
        return Contexts(raw["current"], contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(
            f"is no file of contexts ({type(exc).__name__}); remove it, and log in again", where=str(path)
        ) from exc


def save_contexts(directory: Path, contexts: Contexts) -> None:
    """Replace the file as a whole, readable by its user alone: it may hold tokens. Without contexts there is
    no file."""
    if not contexts.contexts:
        (directory / _FILE).unlink(missing_ok=True)
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "current": contexts.current,
        "contexts": {name: asdict(context) for name, context in contexts.contexts.items()},
    }
    fresh = directory / f".{_FILE}.new"
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(json.dumps(document, indent=2).encode())
    fresh.replace(directory / _FILE)


def known_addresses(service: str, environment: Mapping[str, str] = os.environ) -> str:
    """The addresses of the "dispatcher" or the "resolver" by HOSS_DISPATCHER or HOSS_RESOLVER, else of the
    current context, separated by commas; "" where none says. Raises ConfigError for a HOSS_CONTEXT that is
    not known: whoever mistypes it must not act on another platform."""
    if given := environment.get(f"HOSS_{service.upper()}", ""):
        return given
    known = load_contexts(home())
    named = environment.get("HOSS_CONTEXT", "")
    if named and named not in known.contexts and named != LOCAL:
        there = ", ".join(known.contexts) or "none"
        raise ConfigError(
            f"{named!r} is no context; there are {there}{did_you_mean(named, list(known.contexts))}",
            where="HOSS_CONTEXT",
        )
    return str(getattr(known.contexts.get(named or known.current, Context()), service))


def found_addresses(service: str) -> list[str]:
    """As `known_addresses`, else of the local platform. Raises TransportError where there is none."""
    text = known_addresses(service) or getattr(load_contexts(home()).contexts.get(LOCAL), service, "")
    if not text:
        raise TransportError(
            f"no platform is running here: start one with `hoss up`, or set HOSS_{service.upper()}"
        )
    return [part.strip() for part in text.split(",") if part.strip()]

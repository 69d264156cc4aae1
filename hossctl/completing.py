"""What a shell's Tab offers: kinds, and the names that a living platform has of them."""

from collections.abc import Callable

import typer

from hoss.errors import HossError
from hossctl.endpoints import Endpoints
from hossctl.kinds import ALL, Kind, Query, read_kind

_PATIENCE_SECONDS = 1.0  # whoever pressed Tab waits
_MOST = 200  # more than that nobody reads


def kinds(*allowed: Kind) -> Callable[[str], list[str]]:
    """Completes a KIND."""
    return lambda incomplete: [kind.value for kind in allowed or tuple(Kind) if kind.value.startswith(incomplete)]


def names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes a NAME of the kind that stands before it: nothing where there is no platform, none in time, or no such kind."""
    given = ctx.params
    try:
        kind = read_kind(given.get("kind") or "")
        query = Query(kind, (), ALL if given.get("all_namespaces") else given.get("namespace") or "default")
        endpoints = Endpoints(given.get("dispatcher") or "", given.get("resolver") or "")
        endpoints.check(kind)
        known = _known(endpoints, query)
    except HossError:
        return []
    taken = set(given.get("names") or ())
    return [name for name in known if name.startswith(incomplete) and name not in taken][:_MOST]


def _known(endpoints: Endpoints, query: Query) -> list[str]:
    import asyncio  # noqa: PLC0415 - where there is a platform to ask

    from hossctl.listing import fetch  # noqa: PLC0415

    try:
        documents = asyncio.run(asyncio.wait_for(fetch(endpoints, query), _PATIENCE_SECONDS))
    except asyncio.TimeoutError:
        return []
    return [str(document["name"]) for document in documents if "name" in document]

"""Pages of lists in order of keys, and a client that reads on."""

from types import SimpleNamespace

import pytest

from hoss.errors import InvalidInput
from hoss.wire.pages import first_page, key_before, pages

KEYS = ["", "a", "b", "c"]


def page_of(keys, request):
    after = key_before(request.page_token)
    left = sorted(key for key in keys if after is None or key > after)
    found, token = first_page(left, request.limit, str)
    return SimpleNamespace(found=list(found), next_page_token=token)


async def read(keys, limit):
    async def call(request):
        return page_of(keys, request)

    return [page.found async for page in pages(call, SimpleNamespace(limit=limit, page_token=""))]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_pages_hold_every_entry_once_and_the_last_is_not_empty(limit):
    assert await read(KEYS, limit) == [KEYS[at : at + limit] for at in range(0, len(KEYS), limit)]


async def test_without_a_limit_everything_comes_at_once_and_nothing_is_one_empty_page():
    assert await read(KEYS, 0) == [KEYS]
    assert await read([], 2) == [[]]


def test_an_entry_that_goes_between_two_pages_hides_no_other():
    token = page_of(KEYS, SimpleNamespace(limit=2, page_token="")).next_page_token
    assert page_of(["b", "c"], SimpleNamespace(limit=2, page_token=token)).found == ["b", "c"]


def test_a_token_that_no_reply_gave_is_refused():
    with pytest.raises(InvalidInput, match=r"^page_token: 'b' is not from an earlier reply$"):
        key_before("b")

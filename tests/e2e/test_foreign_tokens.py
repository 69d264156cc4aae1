"""Tokens of an OpenID Connect issuer at every door of a real platform: who may come in, and who is refused
and why."""

import asyncio
import sys
from collections.abc import Iterator

import aiohttp
import grpc
import oidc_issuer
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from e2e.attacks import METHODS, ConfiguredCluster
from oidc_issuer import Issuer
from waiting import DEADLINE_SECONDS

from hoss.client.access import ClientAccess
from hoss.client.dispatcher import DispatcherClient, submission
from hoss.errors import AccessDenied
from hoss.host import THIS_HOST
from hoss.model.pod import PodSpec, PodTemplate, Workload
from hoss.security.identity import CallerKind, Identity, Role

RULES = [
    {"groups": ["oidc:team-*"], "role": "submit", "tenant": "*"},
    {"groups": ["oidc:ops"], "role": "operate"},
]


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with oidc_issuer.serving(tmp_path_factory.mktemp("issuer")) as made:
        yield made


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[ConfiguredCluster]:
    authentication = {"oidc": [issuer.settings()], "rules": RULES}
    made = ConfiguredCluster(tmp_path_factory.mktemp("doors"), authentication)
    yield made
    made.stop()


async def test_a_user_of_the_issuer_may_do_what_its_rule_says_and_nothing_else(doors, issuer) -> None:
    operator = Identity(CallerKind.CLIENT, "oidc:ops-1", Role.OPERATE)
    await doors.check_rights(issuer.token(sub="ops-1", groups=["ops"]), operator)
    tenant = Identity(CallerKind.CLIENT, "oidc:ana", Role.SUBMIT, "blue")
    await doors.check_rights(issuer.token(groups=["team-blue"]), tenant)


async def test_tenants_by_the_issuers_groups_do_not_see_each_other(doors, issuer) -> None:
    def job(namespace: str):
        template = PodTemplate(PodSpec(namespace=namespace), owner_kind="Job")
        (request,) = submission([Workload("mine", template, 1)])
        return request

    red, blue = (issuer.token(sub=team, groups=[f"team-{team}"]) for team in ("red", "blue"))
    async with doors.bearing(red) as of_red, doors.bearing(blue) as of_blue:
        await of_red.submit(job("red"))
        with pytest.raises(AccessDenied, match="limited to 'blue'"):
            await of_blue.submit(job("red"))
        assert [found.name for found in await of_red.list_jobs()] == ["mine"]
        assert await of_blue.list_jobs() == []


async def test_a_call_that_is_limited_to_a_tenant_has_that_tenants_rights_whoever_makes_it(
    doors, issuer
) -> None:
    template = PodTemplate(PodSpec(namespace="green"), owner_kind="Job")
    (request,) = submission([Workload("limited", template, 2)])
    async with (
        doors.bearing(issuer.token(groups=["ops"])) as operator,
        doors.bearing(issuer.token(groups=["team-blue"])) as of_blue,
    ):
        await operator.submit(request)
        for_green, for_blue = operator.of_tenant("green"), operator.of_tenant("blue")
        assert [found.name for found in await for_green.list_jobs()] == ["limited"]
        assert sum((await for_green.pod_summary()).pods_by_phase.values()) == 2
        assert await for_blue.list_jobs() == []
        assert sum((await for_blue.pod_summary()).pods_by_phase.values()) == 0
        with pytest.raises(AccessDenied, match="limited to tenant 'green'"):
            await for_green.list_workers()
        assert await operator.list_workers() == []  # the client itself has its rights as before
        with pytest.raises(AccessDenied, match="cannot call for tenant 'green'"):
            await of_blue.of_tenant("green").list_jobs()


async def test_every_method_refuses_a_user_without_a_rule_and_one_whom_nobody_vouches_for(
    doors, issuer
) -> None:
    unknown = await doors.codes(issuer.token(groups=["others"]))
    assert set(unknown.values()) == {grpc.StatusCode.PERMISSION_DENIED}
    forged = issuer.token(key=rsa.generate_private_key(65537, 2048), groups=["ops"])
    for token in (forged, issuer.token(exp=1, groups=["ops"])):
        assert set((await doors.codes(token)).values()) == {grpc.StatusCode.UNAUTHENTICATED}
    assert len(unknown) == len(METHODS)


async def test_each_refusal_says_in_one_sentence_what_is_wrong_and_no_log_has_a_token(doors, issuer) -> None:
    right = issuer.token(groups=["ops"])
    told = {
        issuer.token(exp=1): "the token has expired; get a new one from https",
        issuer.token(nbf=2**40, exp=2**41): "not valid yet",
        issuer.token(iss="https://elsewhere.example.com"): "from another issuer, 'https://elsewhere",
        issuer.token(aud="others"): "for another audience",
        issuer.token(groups=["others"]): "oidc:ana is known and has no role here",
        oidc_issuer.tampered(right, sub="root"): "or it was changed",
        issuer.token(kid="other", key=rsa.generate_private_key(65537, 2048)): "no key of https",
    }
    for token, sentence in told.items():
        said = await doors.said(token)
        assert said.startswith("AccessDenied: ")
        assert sentence in said
    assert "algorithm is none" in await doors.said(oidc_issuer.unsigned(right))
    assert await doors.said(right) == ""
    await doors.check_secret([right, *told])


async def test_the_dashboard_takes_the_tokens_of_the_issuer_too(doors, issuer) -> None:
    url = await asyncio.to_thread(doors.start_dashboard)
    timeout = aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=timeout) as http:
        async with http.post(f"{url}api/login", json={"token": issuer.token(groups=["others"])}) as refused:
            assert refused.status == 401
            assert "no role here" in (await refused.json())["error"]
        token = issuer.token(groups=["team-blue"])
        async with http.post(f"{url}api/login", json={"token": token}) as answer:
            assert answer.status == 200
        async with http.get(f"{url}api/access") as answer:
            shown = await answer.json()
        assert (shown["caller"], shown["role"], shown["tenant"]) == ("oidc:ana", "submit", "blue")
        async with http.get(f"{url}api/nodes/n1") as answer:
            assert answer.status == 403
        doors.authority.revoke_token("oidc:ana", now=THIS_HOST.utc_now())
        try:
            async with http.get(f"{url}api/nodes/n1") as answer:
                assert answer.status == 401  # the session has ended with its user
        finally:
            for revoked in doors.authority.directory.rglob("revoked"):
                revoked.write_text("")


async def test_a_context_names_a_command_that_prints_a_token(doors, issuer, tmp_path, hoss) -> None:
    (tmp_path / "token").write_text(issuer.token(groups=["team-blue"]))
    program = tmp_path / "prints.py"
    program.write_text(f"import pathlib; print(pathlib.Path({str(tmp_path / 'token')!r}).read_text())")
    addresses = [f"--dispatcher={doors.cluster.address('dispatcher')}"]
    login = ["login", "lab", *addresses, "--tls-dir", str(doors.entry)]
    command = ["--token-command", f"{sys.executable} {program}"]
    await asyncio.to_thread(hoss, *login, *command)
    listed = await asyncio.to_thread(hoss, "get", "jobs", "-o", "json")
    assert "error" not in str(listed)
    program.write_text("raise SystemExit(4)")
    access = ClientAccess(doors.entry, token_command=command[1])
    async with DispatcherClient([doors.cluster.address("dispatcher")], open_channel=access.channel) as client:
        with pytest.raises(AccessDenied, match=r"no token for .*exit code 4"):
            await client.list_jobs()


async def test_without_its_issuer_the_platform_goes_on_with_the_keys_that_it_has(doors, issuer) -> None:
    assert await doors.said(issuer.token(groups=["ops"])) == ""
    issuer.stop()
    try:
        assert await doors.said(issuer.token(sub="another", groups=["ops"])) == ""
    finally:
        issuer.start()

"""Rules that give users of others a role here."""

import pytest
from pydantic import ValidationError

from hoss.errors import AccessDenied
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.users import AuthenticationConfig, OidcIssuer, UnmappedUser, User, claim

ANA = User("oidc:ana", ("oidc:research", "oidc:staff"))
ROBOT = User("system:serviceaccount:batch:robot", ("system:serviceaccounts", "system:serviceaccounts:batch"))


def configured(*rules: dict[str, object]) -> AuthenticationConfig:
    return AuthenticationConfig.model_validate({"rules": rules})


def test_a_user_whom_no_rule_names_may_do_nothing() -> None:
    for config in (
        configured(),
        configured({"users": ["oidc:bob"], "groups": ["research"], "role": "admin"}),
    ):
        with pytest.raises(UnmappedUser, match="oidc:ana is known and has no role here"):
            config.identity_of(ANA)


@pytest.mark.parametrize(
    ("rule", "user", "role", "tenant"),
    [
        ({"users": ["oidc:ana"], "role": "admin"}, ANA, Role.ADMIN, ""),
        ({"groups": ["oidc:staff"], "role": "view"}, ANA, Role.VIEW, ""),
        ({"groups": ["oidc:research"], "role": "submit", "tenant": "lab"}, ANA, Role.SUBMIT, "lab"),
        ({"groups": ["oidc:re*"], "role": "submit", "tenant": "*"}, ANA, Role.SUBMIT, "search"),
        (
            {"users": ["system:serviceaccount:*:robot"], "role": "submit", "tenant": "team-*"},
            ROBOT,
            Role.SUBMIT,
            "team-batch",
        ),
        ({"groups": ["system:serviceaccounts:batch"], "role": "operate"}, ROBOT, Role.OPERATE, ""),
    ],
)
def test_a_rule_gives_role_and_tenant_by_name_or_group(rule, user, role, tenant) -> None:
    assert configured(rule).identity_of(user) == Identity(CallerKind.CLIENT, user.name, role, tenant)


def test_the_first_rule_that_is_for_a_user_counts_and_none_shuts_out() -> None:
    everybody = {"groups": ["oidc:staff"], "role": "operate"}
    assert configured({"users": ["oidc:ana"], "role": "view"}, everybody).identity_of(ANA).role is Role.VIEW
    with pytest.raises(UnmappedUser, match="shut out"):
        configured({"users": ["oidc:ana"], "role": "none"}, everybody).identity_of(ANA)


def test_a_star_never_stands_for_nothing_which_would_be_every_tenant() -> None:
    config = configured({"groups": ["oidc:team-*"], "role": "view", "tenant": "*"})
    with pytest.raises(UnmappedUser):
        config.identity_of(User("oidc:eve", ("oidc:team-",)))


def test_of_several_groups_the_tenant_does_not_depend_on_their_order() -> None:
    config = configured({"groups": ["oidc:team-*"], "role": "view", "tenant": "*"})
    groups = ("oidc:team-b", "oidc:team-a")
    assert {config.identity_of(User("oidc:ana", order)).tenant for order in (groups, groups[::-1])} == {"a"}


def test_a_name_that_no_identity_can_have_is_refused() -> None:
    with pytest.raises(AccessDenied, match="printable"):
        configured({"groups": ["g"], "role": "view"}).identity_of(User("oidc:" + "x" * 300, ("g",)))


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"role": "view"}, "nobody"),
        ({"users": ["*"], "role": "view"}, "is no name"),
        ({"users": [""], "role": "view"}, "is no name"),
        ({"users": ["a*b*"], "role": "view"}, "is no name"),
        ({"users": ["a"], "role": "view", "tenant": "*"}, "which tenant"),
        ({"users": ["a"], "role": "operate", "tenant": "t"}, "whole platform"),
        ({"users": ["a"], "role": "root"}, "admin"),
        ({"users": ["a"]}, "required"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_at_the_start(rule, problem) -> None:
    with pytest.raises(ValidationError, match=problem):
        configured(rule)


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "http://login.example.com"},
        {"issuer": "https://user@login.example.com"},
        {"issuer": "https://login.example.com?x=1"},
        {"issuer": "login.example.com"},
        {"audience": ""},
        {"prefix": ""},
        {"prefix": "oidc"},
        {"prefix": "system:"},
        {"prefix": "system:serviceaccount:"},
        {"leeway_seconds": 3600},
    ],
)
def test_an_issuer_that_cannot_be_is_refused_at_the_start(change) -> None:
    right = {"issuer": "https://login.example.com", "audience": "hoss"}
    OidcIssuer.model_validate(right)
    with pytest.raises(ValidationError):
        OidcIssuer.model_validate({**right, **change})


@pytest.mark.parametrize("same", ["issuer", "prefix"])
def test_two_issuers_are_told_apart(same) -> None:
    a = {"issuer": "https://a.example.com", "audience": "hoss", "prefix": "a:"}
    b = {"issuer": "https://b.example.com", "audience": "hoss", "prefix": "b:"}
    AuthenticationConfig.model_validate({"oidc": [a, b]})
    with pytest.raises(ValidationError, match=f"the same {same}"):
        AuthenticationConfig.model_validate({"oidc": [a, {**b, same: a[same]}]})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("sub", "ana"),
        ("realm_access.roles", ["research"]),
        ("resource_access.hoss.roles", ["ops"]),
        ("https://example.com/groups", ["named-with-dots"]),  # its own name, before any path
        ("realm_access.roles.research", None),
        ("realm_access.none", None),
        ("sub.none", None),
        ("none", None),
    ],
)
def test_a_claim_is_found_by_its_name_or_by_a_path_of_dots(name, found) -> None:
    claims = {
        "sub": "ana",
        "realm_access": {"roles": ["research"]},
        "resource_access": {"hoss": {"roles": ["ops"]}},
        "https://example.com/groups": ["named-with-dots"],
    }
    assert claim(claims, name) == found

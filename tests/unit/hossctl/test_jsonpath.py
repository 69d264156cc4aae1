"""JSONPath templates as kubectl's."""

import pytest

from hoss.errors import InvalidInput
from hossctl.jsonpath import read_path, read_template, written

ROOT = {
    "kind": "List",
    "items": [
        {"name": "a", "phase": "Bound", "attempts": 1, "labels": {"app.io/x": "y"}, "ok": True},
        {"name": "b", "phase": "Queued", "attempts": 3, "labels": {}},
        {"name": "c", "phase": "Bound", "attempts": 2},
    ],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.kind}", "List"),
        ("{.items[*].name}", "a b c"),
        ("{$.items[0].name}", "a"),
        ("{.items[-1].name}", "c"),
        ("{.items[-1:].name} {.items[0:2].name}", "c a b"),
        ("{.items[0].labels['app.io/x']}", "y"),
        ("{.items[0].labels}", '{"app.io/x":"y"}'),
        ("{.items[0].ok} {.items[0].attempts}", "true 1"),
        ('{.items[?(@.phase=="Bound")].name}', "a c"),
        ("{.items[?(@.phase != 'Bound')].name}", "b"),
        ("{.items[?(@.attempts > 1)].name}", "b c"),
        ("{.items[?(@.name > 1)].name}", ""),
        ("{.items[?(@.ok)].name}", "a"),
        ('{range .items[*]}{.name}={.attempts}{"\\n"}{end}', "a=1\nb=3\nc=2\n"),
        ("{range .items[*]}{@.name},{end}!", "a,b,c,!"),
        ("{.nothing}{.items[9].name}", ""),
        ("name: {.items[1].name}.", "name: b."),
        ("{.items[0].*}", 'a Bound 1 {"app.io/x":"y"} true'),
    ],
)
def test_a_template_is_filled_in_as_kubectl_does(template, text):
    assert written(read_template(template), ROOT) == text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{.items[*].name", "a brace at .* has no other"),
        ("{.items[x]}", r"cannot be read from '\[x\]' on"),
        ("{range .items[*]}{.name}", r"{range} has no {end}"),
        ("{.name}{end}", r"{end} has no {range}"),
        ("{.a b}", "cannot be read from ' b' on"),
    ],
)
def test_what_is_no_template_is_refused_with_the_place(template, problem):
    with pytest.raises(InvalidInput, match=problem):
        read_template(template)


def test_a_path_may_leave_out_its_first_dot():
    assert read_path("items[0].name").values(ROOT) == ["a"]

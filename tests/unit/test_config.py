import pytest
from pydantic import Field

from hoss.config import Document, load_document, parse_document, with_flags
from hoss.errors import ConfigError

HEAD = "apiVersion: hoss.dev/v1alpha1\nkind: Example\n"


class Item(Document):
    size: int


class Example(Document):
    items: tuple[Item, ...] = ()
    name: str = "x"


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse_document(text, "Example", Example, where="example.yaml")
    return str(error.value)


def test_a_good_document_is_read():
    assert parse_document(HEAD + "items: [{size: 3}]\n", "Example", Example, where="x").items[0].size == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (HEAD + "nmae: y\n", "example.yaml: nmae: is no field here; did you mean 'name'?"),
        (HEAD + "items: [{size: big}]\n", "items[0].size: is 'big', where a whole number belongs"),
        (
            HEAD.replace("v1alpha1", "v1"),
            "apiVersion: is 'hoss.dev/v1'; this release reads 'hoss.dev/v1alpha1'",
        ),
        (HEAD.replace("Example", "Other"), "kind: is 'Other'; this release reads 'Example'"),
        ("a: [", "example.yaml: is no valid YAML"),
        ("- 1\n", "example.yaml: holds a list, not a mapping with apiVersion and kind"),
        ("web\n", "example.yaml: holds 'web', not a mapping with apiVersion and kind"),
        ("# nothing yet\n", "example.yaml: is empty; write a mapping with apiVersion and kind"),
        (HEAD + "---\n" + HEAD, "example.yaml: holds 2 documents; give one"),
        (HEAD + "items: " + "[" * 300, "is nested more than 200 levels deep"),
    ],
)
def test_a_bad_document_is_refused_with_file_field_and_value(text, error):
    assert error in refusal(text)


def test_a_bad_item_is_reported_without_its_list_being_too_short():
    class Filled(Document):
        items: tuple[Item, ...] = Field(min_length=1)

    with pytest.raises(ConfigError) as error:
        parse_document(HEAD + "items: [{size: big}]\n", "Example", Filled, where="example.yaml")
    assert str(error.value) == "example.yaml: items[0].size: is 'big', where a whole number belongs"
    with pytest.raises(ConfigError, match="items: is an empty list, where a list of 1 item or more belongs"):
        parse_document(HEAD + "items: []\n", "Example", Filled, where="example.yaml")


def test_flags_override_the_document_and_a_wrong_flag_is_named():
    document = parse_document(HEAD + "name: y\n", "Example", Example, where="example.yaml")
    assert with_flags(document, {"name": "z", "items": None}).name == "z"
    assert with_flags(load_document(None, "Example", Example), {"name": None}) == Example()
    with pytest.raises(ConfigError, match="flags: name: is 1, where a text belongs; put it in quotes"):
        with_flags(document, {"name": 1})

"""Every text of the dashboard can be read in both themes: WCAG 2.2, 1.4.3, a contrast of 4.5 at least. From
the style sheet itself, so that a colour that somebody changes is checked."""

import re
from pathlib import Path

import pytest

import hossctl.dashboard

STATIC = Path(hossctl.dashboard.__file__).parent / "static"
CSS = (STATIC / "dashboard.css").read_text()
COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", CSS)
}
LEAST = 4.5
# Colours of text, and what it stands on.
ON = {
    "text": ("page", "card", "accent-soft", "heat-0"),
    "soft": ("page", "card", "heat-0"),
    "accent": ("page", "card", "accent-soft"),
    "bad": ("page", "card"),
}
THEMES = pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])


def linear(colour: str) -> list[float]:
    """Red, green and blue without the gamma of sRGB."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: list[float], other: list[float]) -> float:
    dark, light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (one, other))
    return (light + 0.05) / (dark + 0.05)


def blended(colour: str, ground: str, share: float) -> list[float]:
    """A colour of that opacity on a ground; browsers blend with the gamma."""
    mixed = [
        round(share * int(colour[i : i + 2], 16) + (1 - share) * int(ground[i : i + 2], 16))
        for i in (1, 3, 5)
    ]
    return linear("#" + "".join(f"{part:02x}" for part in mixed))


# Björn Ottosson's oklab, in which `color-mix(in oklab, ...)` mixes.
TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
FROM_CONES = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.7076147010),
)


def tinted(colour: str, ground: str, share: float) -> list[float]:
    """A mix of two colours in oklab. Its axes are linear in the cube roots of the cones' answers."""
    roots = [[sum(w * part for w, part in zip(row, linear(c), strict=True)) ** (1 / 3) for row in TO_CONES]
             for c in (colour, ground)]  # fmt: skip
    cones = [(share * a + (1 - share) * b) ** 3 for a, b in zip(*roots, strict=True)]
    return [sum(w * cone for w, cone in zip(row, cones, strict=True)) for row in FROM_CONES]


@THEMES
def test_text_can_be_read_on_whatever_it_stands(theme):
    poor = {
        f"{text} on {ground}": round(found, 2)
        for text, grounds in ON.items()
        for ground in grounds
        if (found := contrast(linear(COLOURS[text][theme]), linear(COLOURS[ground][theme]))) < LEAST
    }
    assert not poor


@THEMES
@pytest.mark.parametrize("notice", [".notice", ".problems"])
def test_notices_can_be_read(theme, notice):
    rules = " ".join(re.findall(rf"^{re.escape(notice)} {{(.*)}}$", CSS, re.MULTILINE))
    ground = re.search(r"background: (?:var\(--([\w-]+)\)|light-dark\((#\w+), (#\w+)\))", rules)
    colour = re.search(r"(?<!-)color: light-dark\((#\w+), (#\w+)\)", rules)
    assert ground
    assert colour
    behind = COLOURS[ground[1]][theme] if ground[1] else ground[2 + theme]
    assert contrast(linear(colour[1 + theme]), linear(behind)) >= LEAST


@THEMES
def test_the_matrix_of_conflicts_can_be_read_at_its_darkest(theme):
    found = re.search(r"MOST_TINT = (\d+)", (STATIC / "panels.js").read_text())
    assert found
    accent, ground, text = (COLOURS[name][theme] for name in ("accent", "heat-0", "text"))
    for share in (12, 12 + int(found[1])):
        assert contrast(tinted(accent, ground, share / 100), linear(text)) >= LEAST


@THEMES
def test_what_was_known_can_be_read_while_the_connection_is_lost(theme):
    found = re.search(r"\[data-link=lost\] main.*opacity: (\.\d+)", CSS)
    assert found
    page, card = COLOURS["page"][theme], COLOURS["card"][theme]
    for text in ("text", "soft", "accent"):
        faded = blended(COLOURS[text][theme], page, float(found[1]))
        assert contrast(faded, blended(card, page, float(found[1]))) >= LEAST, text


def test_no_other_colour_is_used_for_text():
    used = set(re.findall(r"(?<![\w-])color: var\(--([\w-]+)\)", CSS))
    used |= set(re.findall(r"\.chart text {[^}]*fill: var\(--([\w-]+)\)", CSS))
    assert used == set(ON)

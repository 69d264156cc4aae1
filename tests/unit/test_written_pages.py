"""The pages of the repository: links lead to something that is there, and decisions agree on what became of
them."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "adr"

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PAGE_OF_A_DECISION = re.compile(r"\((\d{4})-[\w-]+\.md\)")
_ROW = re.compile(r"^\| (\d+) \| \[(.+)\]\((\S+)\) \| accepted(.*) \| (\d{4}-\d\d-\d\d) \|$", re.MULTILINE)
_STATUS = re.compile(r"^# (\d+)\. (.+)\n\n\*Accepted (\d{4}-\d\d-\d\d)((?:.|\n)*?)\*\n\n")
# The words in which a decision speaks of older ones that it changes, and of those that it builds on.
_CHANGES = re.compile(r"(?:Amends|Supersedes) (?:.|\n)*?\.(?= [A-Z]|\n|$)")
_USES = re.compile(r"Uses (?:.|\n)*?\.(?= [A-Z]|\n|$)")


def _pages() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a repository of git")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings as GitHub makes them, and those that the page names itself."""
    anchors = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    counts: dict[str, int] = {}
    for heading in _HEADING.findall(_BLOCK.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        again = counts.get(anchor, 0)
        counts[anchor] = again + 1
        anchors.add(f"{anchor}-{again}" if again else anchor)
    return anchors


def test_every_link_between_pages_leads_to_a_file_and_a_heading_that_are_there() -> None:
    dead = []
    for page in _pages():
        for link in _LINK.findall((ROOT / page).read_text()):
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            if not target.exists() or (
                anchor and target.suffix == ".md" and anchor not in _anchors(target.read_text())
            ):
                dead.append(f"{page}: {link}")
    assert not dead


def test_decisions_and_their_list_agree_on_titles_dates_and_what_changed_what() -> None:
    statuses = {}
    for path in sorted(DECISIONS.glob("0*.md")):
        found = _STATUS.match(path.read_text())
        assert found, f"{path.name}: the title, and '*Accepted YEAR-MONTH-DAY. ...*' under it"
        statuses[int(path.name[:4])] = (path.name, *found.groups())
    changes: dict[int, set[int]] = {number: set() for number in statuses}  # of the older: the newer ones
    told: dict[int, set[int]] = {}
    for number, (name, in_title, _, _, text) in statuses.items():
        assert int(in_title) == number, name
        sentences = " ".join(text.split())
        for sentence in _CHANGES.findall(sentences):
            for older in _PAGE_OF_A_DECISION.findall(sentence):
                changes[int(older)].add(number)
        rest = _USES.sub("", _CHANGES.sub("", sentences))
        told[number] = {int(newer) for newer in _PAGE_OF_A_DECISION.findall(rest)}
    assert told == changes, "a page says 'Amended by' or 'Superseded on ... by' of each that changes it"
    rows = {int(row[0]): row[1:] for row in _ROW.findall((DECISIONS / "README.md").read_text())}
    assert rows.keys() == statuses.keys()
    for number, (title, name, text, date) in rows.items():
        listed = {int(newer) for newer in _PAGE_OF_A_DECISION.findall(text)}
        page, _, its_title, its_date, _ = statuses[number]
        assert (title, name, date, listed) == (its_title, page, its_date, changes[number]), f"row {number}"

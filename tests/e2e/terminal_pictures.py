"""Pictures of a terminal for the README: what `hoss demo` and `hoss top` really print. `make
terminal-pictures` draws them."""

import os
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from hossctl.cli import run_async
from hossctl.endpoints import Endpoints
from hossctl.views.status import TopView, fetch_status

_COLUMNS = 104
_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: load}
spec:
  parallelism: 400000
  completions: 400000
  template: {spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1m, memory: 1Mi}}}]}}
"""


def main() -> int:
    """Draw both into the directory named."""
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOSS_HOME": home, "COLUMNS": str(_COLUMNS)}
        os.environ["HOSS_HOME"] = home
        drawn = _recorder()
        drawn.print(_shown("$ make demo"), Text(_run(environment, "demo").rstrip()), sep="\n")
        _save(drawn, directory / "demo.svg", "make demo")
        _run(environment, "up", "--nodes", "5000", "--workers", "4")
        try:
            _run(environment, "submit", "-f", "-", stdin=_JOB)
            drawn = _recorder()
            drawn.print(_shown("$ hoss top"), _busiest(), sep="\n")
            _save(drawn, directory / "top.svg", "hoss top")
        finally:
            _run(environment, "down")
    return 0


def _busiest() -> object:
    """The frame with the most throughput, of those until all is bound."""
    best = TopView.of(run_async(fetch_status(Endpoints())))
    while True:
        frame = TopView.of(run_async(fetch_status(Endpoints())))
        best = max(best, frame, key=lambda seen: (seen.pods_per_second, sum(seen.queues.values())))
        if not any(frame.queues.values()):
            return Text("\n".join(best.lines()))


def _run(environment: dict[str, str], *arguments: str, stdin: str = "") -> str:
    command = [sys.executable, "-m", "hossctl", *arguments]
    done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def _recorder() -> Console:
    return Console(record=True, width=_COLUMNS, force_terminal=True, file=StringIO())


def _shown(command: str) -> Text:
    return Text(command, style="bold green")


def _save(console: Console, path: Path, title: str) -> None:
    # One id for whatever is in the picture, so that drawing it anew changes what has changed; and no font
    # from elsewhere.
    svg = console.export_svg(title=title, theme=SVG_EXPORT_THEME, unique_id=path.stem)
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""The parts of the chart's values.schema.json that documents of HOSS have: what the chart passes on to a
service is refused by helm as the service would refuse it at its start. The rest of that file is written by
hand."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dispatcher.config import ClusterSection
from hoss.config import Document
from hoss.security.users import AuthenticationConfig
from scheduler_worker.config import WorkerConfig

# Of each document: what the chart itself sets, by flags or in the file, or what no pod can have.
_OF_THE_CHART: dict[type[Document], tuple[str, ...]] = {
    ClusterSection: ("kubeconfig", "context", "lease"),
    WorkerConfig: (
        "name", "listen", "dispatcher", "resolvers", "tls_dir", "insecure", "metrics_listen", "metrics_tls",
        "kube_scheduler_config", "turns",
    ),
    AuthenticationConfig: (),
}  # fmt: skip
# For readers of code. docs/reference/configuration.md has the meaning of each field.
_LEFT_OUT = ("title", "default", "description", "format")
_KEY = "$defs"


def schema(path: Path) -> str:
    """The file at `path` with these parts as the code has them."""
    document = json.loads(path.read_text("utf-8"))
    found: dict[str, Any] = {}
    for model, of_the_chart in _OF_THE_CHART.items():
        made = model.model_json_schema()
        found |= {name: _bare(part) for name, part in made.pop(_KEY, {}).items()}
        fields = {name: part for name, part in made["properties"].items() if name not in of_the_chart}
        found[model.__name__] = _bare({**made, "properties": fields})
    document[_KEY] = dict(sorted(found.items()))
    return json.dumps(document, indent=2) + "\n"


def _bare(part: Any) -> Any:
    """Without what refuses nothing. The names of properties stay, whatever they are."""
    if isinstance(part, list):
        return [_bare(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    kept: Iterable[tuple[str, Any]] = (item for item in part.items() if item[0] not in _LEFT_OUT)
    return {
        name: {field: _bare(of_field) for field, of_field in inner.items()}
        if name == "properties"
        else _bare(inner)
        for name, inner in kept
    }

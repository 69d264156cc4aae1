"""SchedulingPolicy documents: YAML in, the core's frozen rules out."""

from pathlib import Path

from pydantic import ConfigDict, Field, field_validator

from dispatcher.core.policy import Policy
from dispatcher.rule_document import RuleDocument
from dispatcher.tenants_document import TenantsDocument
from hoss.config import Document, checked, parse_document
from hoss.errors import ConfigError
from hoss.model.names import check_name

KIND = "SchedulingPolicy"

DEFAULT_YAML = """\
apiVersion: hoss.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: default}
rules:
  - name: default
    balance: {algorithm: LeastOutstanding}
    fallback: Wait
"""

# Far more than anyone can keep in mind; a document beyond it was made by mistake.
MAX_RULES = 1000


class Metadata(Document):
    """Kubernetes' metadata, of which only the name is read."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    # What `hoss policy get` and `hoss status` call it.
    name: str = "default"

    @field_validator("name")
    @classmethod
    def _valid_name(cls, name: str) -> str:
        return checked(check_name, name)


class PolicyDocument(Document):
    """Ordered rules: the first that matches a pod decides."""

    # Kubernetes' metadata.
    metadata: Metadata = Metadata()

    # In order. Pods that none matches wait, with that as the reason.
    rules: tuple[RuleDocument, ...] = Field(min_length=1, max_length=MAX_RULES)

    # Who shares the queue with whom.
    tenants: TenantsDocument = TenantsDocument()

    @field_validator("rules")
    @classmethod
    def _names_differ(cls, rules: tuple[RuleDocument, ...]) -> tuple[RuleDocument, ...]:
        names = [rule.name for rule in rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"rule names must differ; given more than once: {', '.join(twice)}")
        return rules

    def policy(self) -> Policy:
        """As the core has it."""
        return Policy(
            tuple(rule.rule() for rule in self.rules), name=self.metadata.name, sharing=self.tenants.sharing()
        )


def parse_policy(text: str, *, where: str = "policy") -> Policy:
    """Read a SchedulingPolicy. Raises ConfigError naming the field's path, the value, and what would be right."""
    return parse_document(text, KIND, PolicyDocument, where=where).policy()


def read_policy(path: Path) -> str:
    """A file's text. Raises ConfigError naming the file when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {exc}", where=str(path)) from exc

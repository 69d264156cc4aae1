"""The policy in force: where it came from, and how another one replaces it.

There are two sources: a file, whose content is compared every second, and the command `hoss policy set`. The
source that changed last is in force, also after a restart: the journal keeps the policy with a digest of the
file's content at that time, and a file with another content has changed since. A document that is refused
changes nothing but the recorded refusal.
"""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from dispatcher.core.policy.checks import cluster_warnings, document_warnings
from dispatcher.core.policy.rules import Policy
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.policy import documents
from dispatcher.policy.dry_run import dry_run, policy_context
from dispatcher.ports import SavedPolicy
from dispatcher.runtime import Runtime
from hoss.config import read_text
from hoss.errors import ConfigError, InvalidInput, LedgerUnavailable
from hoss.host import THIS_HOST, Host
from hoss.model.pod import PodTemplate
from hoss.tasks import in_turns
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import template_from_proto

# A changed file takes effect within this time. Its content is compared, not its times: a mounted ConfigMap
# changes when a symbolic link above it is replaced.
POLL_SECONDS = 1.0

# Parsed within the event loop: some 10 ms.
_SMALL_CHARACTERS = 20_000

DEFAULT = "default"
COMMAND = "command"


class StaleVersion(InvalidInput):
    """A policy was to replace a version that is not in force."""


@dataclass(frozen=True, slots=True)
class PolicyRefusal:
    """A document that was not put in force."""

    source: str
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckedPolicy:
    """A policy, and what is probably a mistake in its document. To find that takes seconds for 1,000
    rules."""

    policy: Policy
    warnings: tuple[str, ...]


class ActivePolicy:
    """Replaces the machine's policy and remembers the source. Call `restore` first."""

    def __init__(
        self, runtime: Runtime, nodes: ClusterNodes, file: Path | None, *, host: Host = THIS_HOST
    ) -> None:
        self._host = host
        self._runtime = runtime
        self._nodes = nodes
        self._file = file
        self._file_source = f"file {file}"
        self._file_digest = ""  # of the content read last
        self._saved = SavedPolicy(1, documents.DEFAULT_YAML, DEFAULT, 0, "")
        self._document_warnings: tuple[str, ...] = ()  # of the policy in force
        self._refusals: dict[str, PolicyRefusal] = {}  # by source, until a valid document comes from there
        self._changing = asyncio.Lock()

    @property
    def policy(self) -> Policy:
        return self._runtime.machine.routing.policy

    async def restore(self) -> None:
        """While starting: put in force the saved policy, or the source that has changed since. Raises
        ConfigError for an invalid file while there is no saved policy, and for a saved policy that this
        release refuses."""
        saved = await self._runtime.until_answered(self._runtime.journal.saved_policy, "journal")
        try:
            text = None if self._file is None else read_text(self._file)
            self._file_digest = _digest(text)
            if saved is None or self._changed_since(saved):
                await self._begin(text, 1 if saved is None else saved.version + 1)
                return
        except ConfigError as exc:
            if saved is None:
                raise
            self._refuse(self._file_source, exc)
        await self._put_in_force(await self._parse_saved(saved), saved)

    async def set(self, yaml: str, if_version: int) -> None:
        """Put a policy in force by command. Raises InvalidInput, StaleVersion or LedgerUnavailable; then the
        old one stays. Raises OutcomeUnknown: a dispatcher that takes over at once may find the new one."""
        async with self._changing:
            if if_version not in (0, self._saved.version):
                raise StaleVersion(
                    f"version {if_version} is not in force any more: {self._saved.version} is (source: "
                    f"{self._saved.source}); get that one, make your change to it, and set it with its "
                    "version",
                    where="if_version",
                )
            try:
                policy = await self._parse(yaml)
            except InvalidInput as exc:
                self._refuse(COMMAND, exc)
                raise
            await self._replace(policy, yaml, COMMAND)

    async def follow_file(self) -> None:
        """Follow the file until cancelled."""
        while self._file is not None:
            await asyncio.sleep(POLL_SECONDS)
            await self.poll_file()

    async def poll_file(self) -> None:
        """Put the file's policy in force if its content has changed and is valid."""
        if self._file is None:
            return
        async with self._changing:
            before = self._file_digest
            try:
                text = read_text(self._file)
                self._file_digest = _digest(text)
                if self._file_digest == before and self._file_source not in self._refusals:
                    return
                if self._file_digest == self._saved.file_digest:  # as when the policy in force was set
                    self._refusals.pop(self._file_source, None)
                    return
                policy = await self._parse(text, where=self._where)
                await self._replace(policy, text, self._file_source)
            except InvalidInput as exc:
                self._refuse(self._file_source, exc)
            except LedgerUnavailable as exc:
                self._file_digest = before  # the next poll finds it changed again
                logger().warning("policy_not_kept", source=self._file_source, error=str(exc))

    def warnings(self) -> list[str]:
        """What is probably a mistake in the policy, and what does not fit the cluster as it is."""
        return self._warnings(CheckedPolicy(self.policy, self._document_warnings))

    async def dry_run(self, request: pb.TestPolicyRequest) -> pb.TestPolicyReply:
        """What the policy in force, or the one in the request, would do with these pods. Raises
        InvalidInput."""
        given = await self._parse(request.yaml) if request.yaml else None
        tried = given or CheckedPolicy(self.policy, self._document_warnings)
        policy, machine = tried.policy, self._runtime.machine
        templates = [_template(message, number) for number, message in enumerate(request.templates)]
        balancers = machine.routing.balancers if given is None else ()
        return pb.TestPolicyReply(
            trials=dry_run(
                policy, templates, machine.members.living(), balancers, machine.routing.worker_limit
            ),
            version=self._saved.version if given is None else 0,
            warnings=self._warnings(tried),
        )

    def problems(self) -> list[str]:
        """A policy file that has to be repaired."""
        refusal = self._refusals.get(self._file_source)
        if refusal is None:
            return []
        version = self._saved.version
        return [f"the policy of {refusal.source} is refused, version {version} stays: {refusal.reason}"]

    def message(self, *, with_text: bool) -> pb.Policy:
        """The policy in force for clients."""
        message = pb.Policy(
            yaml=self._saved.yaml if with_text else "",
            version=self._saved.version,
            name=self.policy.name,
            source=self._saved.source,
            since_unix_ms=self._saved.since_ms,
            warnings=self.warnings(),
        )
        if self._refusals:
            last = max(self._refusals.values(), key=lambda refusal: refusal.at_ms)
            message.refusal.CopyFrom(
                pb.PolicyRefusal(source=last.source, at_unix_ms=last.at_ms, reason=last.reason)
            )
        return message

    @property
    def _where(self) -> str:
        return "policy" if self._file is None else str(self._file)

    def _warnings(self, checked: CheckedPolicy) -> list[str]:
        context = policy_context(checked.policy, self._runtime.machine, self._nodes)
        return [*checked.warnings, *cluster_warnings(checked.policy, context)]

    def _changed_since(self, saved: SavedPolicy) -> bool:
        if self._file is None:
            # A policy set by command stays. One from a file ends when the dispatcher starts without the file.
            return saved.source not in (COMMAND, DEFAULT)
        return saved.file_digest != self._file_digest

    async def _begin(self, text: str | None, version: int) -> None:
        yaml, source = (documents.DEFAULT_YAML, DEFAULT) if text is None else (text, self._file_source)
        policy = await self._parse(yaml, where=self._where)
        saved = SavedPolicy(version, yaml, source, self._runtime.now_ms(), self._file_digest)
        await self._runtime.until_answered(lambda: self._runtime.journal.save_policy(saved), "journal")
        await self._put_in_force(policy, saved)

    async def _replace(self, checked: CheckedPolicy, yaml: str, source: str) -> None:
        version = self._saved.version + 1
        saved = SavedPolicy(version, yaml, source, self._runtime.now_ms(), self._file_digest)
        await self._runtime.journal.save_policy(saved)
        self._refusals.pop(source, None)
        await self._put_in_force(checked, saved)

    async def _put_in_force(self, checked: CheckedPolicy, saved: SavedPolicy) -> None:
        policy = checked.policy
        numbered = replace(policy, version=saved.version)
        setting = self._runtime.machine.setting_policy(numbered, self._runtime.now)
        instructions = await in_turns(setting)
        self._saved, self._document_warnings = saved, checked.warnings
        self._runtime.perform(instructions)
        logger().info("policy_in_force", policy=policy.name, version=saved.version, source=saved.source)

    async def _parse(self, text: str, *, where: str = "policy") -> CheckedPolicy:
        """Read a document. Raises InvalidInput. A large one is read beside the event loop: it takes as long
        as a lease lasts."""

        def read() -> CheckedPolicy:
            policy = documents.parse_policy(text, where=where)
            return CheckedPolicy(policy, tuple(document_warnings(policy)))

        return read() if len(text) <= _SMALL_CHARACTERS else await self._host.beside_the_loop(read)

    async def _parse_saved(self, saved: SavedPolicy) -> CheckedPolicy:
        try:
            return await self._parse(saved.yaml)
        except ConfigError as exc:
            raise ConfigError(
                f"{exc.text}; this release refuses what was put in force by {saved.source}: "
                "start it with --policy FILE and a policy that it reads",
                where=f"policy version {saved.version} in the journal",
            ) from exc

    def _refuse(self, source: str, error: InvalidInput) -> None:
        known = self._refusals.get(source)
        if known is not None and known.reason == str(error) and source != COMMAND:
            return  # the same file is logged once
        self._refusals[source] = PolicyRefusal(source, self._runtime.now_ms(), str(error))
        logger().warning(
            "policy_refused", source=source, reason=str(error), version_in_force=self._saved.version
        )


def _template(message: pb.PodTemplate, number: int) -> PodTemplate:
    try:
        return template_from_proto(message)
    except InvalidInput as exc:
        raise exc.at(f"templates[{number}]") from exc


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

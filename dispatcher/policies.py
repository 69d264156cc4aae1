"""The policy in force: where it came from, and how another takes its place.

There are two sources: a file, whose content is looked at again and again, and the command `hoss policy set`. Whichever
changed last is in force, over restarts too: the journal keeps the policy with a digest of the content that the file had then,
and a file with other content has changed since. What is refused changes nothing but `refusal`.
"""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from dispatcher import policy_document
from dispatcher.core.policy import Policy
from dispatcher.core.policy_checks import doubts, mismatches
from dispatcher.journal import KeptPolicy
from dispatcher.policy_surroundings import PolicySurroundings
from dispatcher.policy_trials import trials
from dispatcher.runtime import Runtime
from hoss.errors import ConfigError, InvalidInput, LedgerUnavailable
from hoss.model.pod import PodTemplate
from hoss.telemetry import logger
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import template_from_proto

# A file that is written or replaced is followed within this time. Its content is compared, not its times: a mounted
# ConfigMap changes by a symbolic link that is exchanged above it.
LOOK_SECONDS = 1.0

DEFAULT = "default"
COMMAND = "command"


class StaleVersion(InvalidInput):
    """A policy was to replace a version that is not in force."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A document that was not put in force."""

    source: str
    at_ms: int
    reason: str


class Policies:
    """Replaces the machine's policy and remembers why. `restore` comes first."""

    def __init__(self, runtime: Runtime, surroundings: PolicySurroundings, file: Path | None) -> None:
        self._runtime = runtime
        self._surroundings = surroundings
        self._file = file
        self._file_source = f"file {file}"
        self._file_digest = ""  # of the content seen last
        self._kept = KeptPolicy(1, policy_document.DEFAULT_YAML, DEFAULT, 0, "")
        self._refusals: dict[str, Refusal] = {}  # by source, until something good comes from there
        self._changing = asyncio.Lock()

    @property
    def policy(self) -> Policy:
        """The rules in force."""
        return self._runtime.machine.routing.policy

    async def restore(self) -> None:
        """While starting: put in force what was before, or what changed since. Raises ConfigError for a file that is no policy
        while there is no other, and for a kept policy that this release refuses."""
        kept = await self._runtime.until_answered(self._runtime.journal.kept_policy, "journal")
        try:
            text = None if self._file is None else policy_document.read_policy(self._file)
            self._file_digest = _digest(text)
            if kept is None or self._changed_since(kept):
                await self._begin(text, 1 if kept is None else kept.version + 1)
                return
        except ConfigError as exc:
            if kept is None:
                raise
            self._refuse(self._file_source, exc)
        self._put_in_force(_parse_kept(kept), kept)

    async def set(self, yaml: str, if_version: int) -> None:
        """Put a policy in force by command. Raises InvalidInput, StaleVersion, or LedgerUnavailable; then the old one stays."""
        async with self._changing:
            if if_version not in (0, self._kept.version):
                raise StaleVersion(
                    f"version {if_version} is not in force any more: {self._kept.version} is (source: {self._kept.source}); "
                    "get that one, make your change to it, and set it with its version",
                    where="if_version",
                )
            try:
                policy = policy_document.parse_policy(yaml)
            except InvalidInput as exc:
                self._refuse(COMMAND, exc)
                raise
            await self._replace(policy, yaml, COMMAND)

    async def follow_file(self) -> None:
        """Follow the file until cancelled."""
        while self._file is not None:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look_at_file()

    async def look_at_file(self) -> None:
        """Put the file's policy in force if it is another than at the last look, and a good one."""
        if self._file is None:
            return
        async with self._changing:
            before = self._file_digest
            try:
                text = policy_document.read_policy(self._file)
                self._file_digest = _digest(text)
                if self._file_digest == before and self._file_source not in self._refusals:
                    return
                if self._file_digest == self._kept.file_digest:  # as it was when the policy in force came
                    self._refusals.pop(self._file_source, None)
                    return
                policy = policy_document.parse_policy(text, where=self._where)
                await self._replace(policy, text, self._file_source)
            except InvalidInput as exc:
                self._refuse(self._file_source, exc)
            except LedgerUnavailable as exc:
                self._file_digest = before  # the next look finds it changed again
                logger().warning("policy_not_kept", source=self._file_source, error=str(exc))

    def warnings(self) -> list[str]:
        """What is probably not meant, and what does not fit the cluster as it is."""
        return [*doubts(self.policy), *mismatches(self.policy, self._surroundings.look(self.policy))]

    def try_on(self, request: pb.TestPolicyRequest) -> pb.TestPolicyReply:
        """What the policy in force, or the one in the request, would do with these pods. Raises InvalidInput."""
        own = policy_document.parse_policy(request.yaml) if request.yaml else None
        policy, machine = own or self.policy, self._runtime.machine
        templates = [_template(message, number) for number, message in enumerate(request.templates)]
        balancers = machine.routing.balancers if own is None else ()
        return pb.TestPolicyReply(
            trials=trials(policy, templates, machine.members.living(), balancers),
            version=self._kept.version if own is None else 0,
            warnings=[*doubts(policy), *mismatches(policy, self._surroundings.look(policy))],
        )

    def problems(self) -> list[str]:
        """A file that waits to be mended."""
        refusal = self._refusals.get(self._file_source)
        if refusal is None:
            return []
        return [f"the policy of {refusal.source} is refused, version {self._kept.version} stays: {refusal.reason}"]

    def told(self, *, with_text: bool) -> pb.Policy:
        """As clients see it."""
        message = pb.Policy(
            yaml=self._kept.yaml if with_text else "",
            version=self._kept.version,
            name=self.policy.name,
            source=self._kept.source,
            since_unix_ms=self._kept.since_ms,
            warnings=self.warnings(),
        )
        if self._refusals:
            last = max(self._refusals.values(), key=lambda refusal: refusal.at_ms)
            message.refusal.CopyFrom(pb.PolicyRefusal(source=last.source, at_unix_ms=last.at_ms, reason=last.reason))
        return message

    @property
    def _where(self) -> str:
        return "policy" if self._file is None else str(self._file)

    def _changed_since(self, kept: KeptPolicy) -> bool:
        if self._file is None:
            # A policy by command stands by itself; one from a file goes when the file is no longer asked for.
            return kept.source not in (COMMAND, DEFAULT)
        return kept.file_digest != self._file_digest

    async def _begin(self, text: str | None, version: int) -> None:
        yaml, source = (policy_document.DEFAULT_YAML, DEFAULT) if text is None else (text, self._file_source)
        policy = policy_document.parse_policy(yaml, where=self._where)
        begun = KeptPolicy(version, yaml, source, self._runtime.now_ms(), self._file_digest)
        await self._runtime.until_answered(lambda: self._runtime.journal.keep_policy(begun), "journal")
        self._put_in_force(policy, begun)

    async def _replace(self, policy: Policy, yaml: str, source: str) -> None:
        kept = KeptPolicy(self._kept.version + 1, yaml, source, self._runtime.now_ms(), self._file_digest)
        await self._runtime.journal.keep_policy(kept)
        self._refusals.pop(source, None)
        self._put_in_force(policy, kept)

    def _put_in_force(self, policy: Policy, kept: KeptPolicy) -> None:
        self._kept = kept
        numbered = replace(policy, version=kept.version)
        self._runtime.perform(self._runtime.machine.set_policy(numbered, self._runtime.now()))
        logger().info("policy_in_force", policy=policy.name, version=kept.version, source=kept.source)

    def _refuse(self, source: str, why: InvalidInput) -> None:
        known = self._refusals.get(source)
        if known is not None and known.reason == str(why) and source != COMMAND:
            return  # told already; the file is still the same
        self._refusals[source] = Refusal(source, self._runtime.now_ms(), str(why))
        logger().warning("policy_refused", source=source, reason=str(why), version_in_force=self._kept.version)


def _template(message: pb.PodTemplate, number: int) -> PodTemplate:
    try:
        return template_from_proto(message)
    except InvalidInput as exc:
        raise exc.at(f"templates[{number}]") from exc


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _parse_kept(kept: KeptPolicy) -> Policy:
    try:
        return policy_document.parse_policy(kept.yaml)
    except ConfigError as exc:
        raise ConfigError(
            f"{exc.text}; this release refuses what was put in force by {kept.source}: start it with --policy FILE and a "
            "policy that it reads",
            where=f"policy version {kept.version} in the journal",
        ) from exc

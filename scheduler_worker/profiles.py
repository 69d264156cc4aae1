"""Which profile a worker uses, by its configuration."""

from hoss.errors import ConfigError
from hoss.telemetry import logger
from scheduler_worker.config import STRATEGY_LABEL, ProfileSection, WorkerConfig
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.profiles import DEFAULT_PROFILE, PRESETS, ProfileSpec
from scheduler_worker.core.registry import Registry, Weighted


def chosen_profile(config: WorkerConfig, registry: Registry) -> tuple[str, Profile]:
    """The profile and its name. ConfigError, with the field's path, for any profile of the document that is none."""
    profiles = dict(PRESETS)
    own: dict[str, Profile] = {}
    for i, section in enumerate(config.profiles):
        if section.name in profiles:
            raise ConfigError(f"{section.name!r} is a profile already; choose another", where=f"profiles[{i}].name")
        profiles[section.name] = _spec(section)
        try:
            own[section.name] = profiles[section.name].profile(registry)
        except ConfigError as exc:
            raise ConfigError(exc.text, where=f"profiles[{i}].{exc.where}") from exc
    name = config.profile or _labelled(config, profiles)
    if name not in profiles:
        raise ConfigError(f"{name!r} is none of {', '.join(profiles)}", where="profile")
    return name, own[name] if name in own else profiles[name].profile(registry)


def _labelled(config: WorkerConfig, profiles: dict[str, ProfileSpec]) -> str:
    strategy = config.labels.get(STRATEGY_LABEL)
    if strategy is None or strategy in profiles:
        return strategy or DEFAULT_PROFILE
    # The label may mean something else to whoever set it; it is theirs.
    logger().warning("strategy_is_no_profile", strategy=strategy, profile=DEFAULT_PROFILE, profiles=list(profiles))
    return DEFAULT_PROFILE


def _spec(section: ProfileSection) -> ProfileSpec:
    return ProfileSpec(
        tuple(Weighted(plugin.name, plugin.weight, plugin.args) for plugin in section.plugins),
        by_chance=section.ties == "Drawn",
    )

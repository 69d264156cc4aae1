"""The rankings that a worker keeps between pods, as many as their memory allows."""

from collections import OrderedDict

from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.classes import Demand
from scheduler_worker.core.pod_ranking import PodRanking
from scheduler_worker.core.profile import Profile
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.static import StaticFit, StaticFits
from scheduler_worker.core.ties import TieOrder


class Rankings:
    """One for each demand. Beyond `limit_bytes` for their columns those go that were used longest ago."""

    def __init__(self, profile: Profile, cache: NodeInfoCache, ties: TieOrder, *, limit_bytes: int) -> None:
        self._profile = profile
        self._cache = cache
        self._ties = ties
        self._statics = StaticFits(profile, cache)
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[Demand, Ranking] = OrderedDict()
        self._bytes_per_node = 0  # of all of them

    def __contains__(self, demand: Demand) -> bool:
        return demand in self._kept

    def static_of(self, demand: Demand) -> StaticFit:
        """What specs say of the demand, up to date; no ranking is made."""
        return self._statics.of(demand)

    def of(self, demand: Demand) -> Ranking:
        """The demand's ranking, made where there is none; not brought up to date."""
        ranking = self._kept.get(demand)
        if ranking is not None:
            self._kept.move_to_end(demand)
            return ranking
        kind = PodRanking if demand.about_pods else Ranking
        ranking = kind(demand, self._statics.of(demand), self._profile, self._cache, self._ties)
        self._kept[demand] = ranking
        self._bytes_per_node += ranking.bytes_per_node
        while self._bytes_per_node * self._cache.size > self._limit_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes_per_node -= dropped.bytes_per_node
        return ranking

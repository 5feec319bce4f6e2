"""Measured crowds, with the sources of their numbers; numbers that were not measured are marked as ours.

Lines: Ookla's medians for the United States at the end of 2022, all fixed lines 193.7 Mbit/s down, 22.6 up, 14 ms;
June 2022 by provider: fibre about 112 Mbit/s up and 8 ms, cable 10.6 to 18.9 up and 11 to 16 ms. The shares are ours,
chosen so that the median of the mixture is Ookla's.
Reachability: at least 52.19 % of IPFS peers sit behind a NAT (Henningsen et al., arXiv 2002.07747); hole punching
succeeds for 70 % (Trautwein et al., arXiv 2510.27500), so 16 % of homes cannot be dialled.
Presence: BOINC runs 81 % of the time, is connected for 83 % of that, and allowed to compute for 84 % (Anderson and
Fedak, CCGrid 2006): together 56 %. Of 230,000 traces of SETI@home 21 % fit a random process, by several families
(Javadi et al., IEEE TPDS 22(11), 2011): mean length, shape and the share that end by force are ours.
Data centres: 2 to 5 Gbit/s between regions (announcement of Decoupled DiLoCo).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dht.units import DAY_SECONDS, HOUR_SECONDS
from peer.plan.population import Lines, Sessions

FAR_SECONDS = 0.02  # from the access network to the middle of a continent, one way; ours
FIBRE = Lines(share=0.42, down_mbit=180, up_mbit=112, latency_seconds=FAR_SECONDS + 0.008 / 2, sigma=0.4)
CABLE = Lines(share=0.48, down_mbit=195, up_mbit=15, latency_seconds=FAR_SECONDS + 0.014 / 2, sigma=0.35)
COPPER = Lines(share=0.10, down_mbit=41, up_mbit=12, latency_seconds=FAR_SECONDS + 0.015 / 2, sigma=0.5)
UNDIALABLE_SHARE = 0.5219 * (1 - 0.70)
ON_SHARE = 0.81 * 0.83 * 0.84

HOMES = (FIBRE, CABLE, COPPER)
EVENINGS = Sessions(mean_seconds=6 * HOUR_SECONDS, on_share=ON_SHARE, shape=0.7, kill_share=0.2)
DAYS = Sessions(mean_seconds=7 * DAY_SECONDS, on_share=0.995, shape=1.0, kill_share=0.5)

LINES: Mapping[str, tuple[Lines, ...]] = MappingProxyType(
    {
        "homes": HOMES,
        "fibre": (FIBRE,),
        "cable": (CABLE,),
        "university": (Lines(1.0, 1000, 1000, FAR_SECONDS),),
        "datacentres": (Lines(0.5, 2000, 2000, FAR_SECONDS), Lines(0.5, 5000, 5000, FAR_SECONDS)),
    }
)
SESSIONS: Mapping[str, Sessions] = MappingProxyType(
    {"homes": EVENINGS, "fibre": EVENINGS, "cable": EVENINGS, "university": DAYS, "datacentres": DAYS}
)
"""By preset. A quiet night costs more than an evening's noise: sessions are not independent (not simulated)."""
UNDIALABLE: Mapping[str, float] = MappingProxyType(
    {"homes": UNDIALABLE_SHARE, "fibre": UNDIALABLE_SHARE, "cable": UNDIALABLE_SHARE}
)

"""Before the first round the sites tell sums over their tables, of which the server makes the schema of all of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.deploy.roster import Agreed, Roster
from coterie.engines.remote import Post, Terms
from coterie.engines.wire import Packet, packed, trouble_of
from coterie.errors import CoterieError
from coterie.federation.datasets.sites import SitesSource
from coterie.federation.merging import merged, received
from coterie.federation.preparing import Summary, size_of

logger = logging.getLogger("coterie.server")


def prepare(
    post: Post, terms: Terms, roster: Roster, options: SitesSource, config: Mapping[str, Any]
) -> dict[int, Agreed]:
    """Ask the sites that are there, once, and go on with those that have answered; by seed, what was agreed on.

    Parameters
    ----------
    post, terms : Post, Terms
        Reach the sites; the deadline and the quorum hold here, too.
    roster : Roster
        Who the sites are, and how many rows each trains on.
    options : SitesSource
        What the experiment says of the columns.
    config : mapping
        What every site is told of the experiment.

    Raises
    ------
    CoterieError
        Fewer sites than the quorum have sent anything that can be used, or a column cannot be.
    """
    here = post.reachable()
    told, failed = _asked(post, terms, roster, config, [name for name in roster.names if name in here])
    failed |= {name: "it was not there" for name in roster.names if name not in told and name not in failed}
    agreed = {}
    for seed in roster.seeds:
        schema, odd = merged({name: told[name][seed][0] for name in roster.names if name in told}, options)
        sent = {name: told[name][seed][1] for name in told}
        agreed[seed] = Agreed(schema, sent, {**failed, **odd})
        if len(told) - len(odd) < min(terms.quorum, len(roster.names)):
            raise CoterieError(
                f"{len(told) - len(odd)} of {len(roster.names)} sites have sent sums that can be used for "
                f"preprocessing: federated, and {terms.quorum} are needed (sites.quorum): "
                + "; ".join(f"{name}: {reason}" for name, reason in agreed[seed].left_out.items())
            )
    for name, reason in {name: reason for each in agreed.values() for name, reason in each.left_out.items()}.items():
        logger.warning("preprocessing goes on without the sums of %s: %s", name, reason)
    return agreed


Told = dict[int, tuple[Summary, int]]
"""By seed, a site's summary and its size in bytes."""


def _asked(
    post: Post, terms: Terms, roster: Roster, config: Mapping[str, Any], names: Sequence[str]
) -> tuple[dict[str, Told], dict[str, str]]:
    """What sites have told, and why others have not."""
    wanted = {"seeds": list(roster.seeds), "config": config}
    packets = {name: packed({"client": name, "prepare": wanted}) for name in names}
    told: dict[str, Told] = {}
    failed: dict[str, str] = {}
    for name, packet in post.exchange(packets, terms.deadline, "preprocessing"):
        try:
            told[name] = _read(name, packet, roster)
        except CoterieError as error:
            failed[name] = str(error)
    silent = [name for name in names if name not in told and name not in failed]
    return told, failed | dict.fromkeys(silent, f"it did not answer within {terms.deadline:g} s (sites.deadline)")


def _read(name: str, packet: Packet | str, roster: Roster) -> Told:
    """A site's answer; raises ``CoterieError`` with a sentence that goes on from the site's name."""
    if isinstance(packet, str):
        raise CoterieError(packet)
    tree = packet.tree()
    if tree.get("client") != name:
        raise CoterieError("it answered for another site")
    if (trouble := trouble_of(tree)) is not None:
        raise CoterieError(trouble[1])
    summaries = tree.get("summaries")
    told = {}
    for seed in roster.seeds:
        content = summaries.get(str(seed)) if isinstance(summaries, dict) else None
        told[seed] = received(content, roster.cards[name][seed].train), size_of(content)
    return told

"""The sites of a federation in one fold of a guard: the same ones, with other examples for training and validation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from coterie.deploy.roster import Roster
from coterie.engines.remote import Post, Terms
from coterie.engines.wire import Packet
from coterie.errors import CoterieError

logger = logging.getLogger("coterie.server")


class Regreeted:
    """The same sites for one fold: before it takes part, each says how many examples it then has; a `Post`.

    Parameters
    ----------
    post : Post
        Reaches the sites.
    roster : Roster
        Of the fold.
    hello : Packet
        What a site is asked for first.
    terms : Terms
        How long its answer is waited for.
    title : str
        Which fold it is, for whoever watches.
    """

    def __init__(self, post: Post, roster: Roster, hello: Packet, terms: Terms, title: str) -> None:
        self.post, self.roster, self.hello, self.terms, self.title = post, roster, hello, terms, title
        self._silent: frozenset[str] = frozenset()

    def reachable(self) -> frozenset[str]:
        """The clients that are there now and take part."""
        here = self.post.reachable()
        self._silent &= here  # one that comes back may have been mended
        if new := here - self.roster.cards.keys() - self._silent:
            packets = dict.fromkeys(sorted(new), self.hello)
            for name, packet in self.exchange(packets, self.terms.deadline, "hello"):
                self._meet(name, packet)
            self._silent |= new - self.roster.cards.keys()
        return here & self.roster.cards.keys()

    def _meet(self, name: str, packet: Packet | str) -> None:
        try:
            if isinstance(packet, str):
                raise CoterieError(packet)
            tree = packet.tree()
            if tree.get("client") != name:
                raise CoterieError("it answered another question")
            self.roster.meet(0, tree)
        except CoterieError as error:
            logger.warning("%s takes no part in %s of the guard: %s", name, self.title, error)

    def wait(self, count: int, seconds: float) -> frozenset[str]:
        """The clients that are there, as soon as they are so many, or when the time is over."""
        self.post.wait(count, seconds)
        return self.reachable()

    def exchange(self, packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        """As the sites' own."""
        return self.post.exchange(packets, seconds, f"{self.title}, {title}")

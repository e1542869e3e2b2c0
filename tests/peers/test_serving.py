"""Serving: which requests of a peer are forwarded to other peers, and which hashes a forwarded request contains."""

from __future__ import annotations

from by_hand import UNKNOWN, ByHand, listening, on_loop
from peering import until
from people import ANN, START_MS

from cablestore.protocol.message import ListRequest, PostRequest, PostResponse, Request, StateRequest, TimeRangeRequest

TEXT, GONE = ANN.text("default", "x", at=START_MS), ANN.text("default", "y", at=START_MS + 1)


@on_loop
async def test_requests_are_forwarded_if_others_can_add_to_the_answer() -> None:
    """A list is forwarded only from its start, and a request for posts only for those that the store does not know."""
    cases: list[tuple[Request, Request | None]] = [
        (ListRequest(b"", 0, 0, 0), None),
        (ListRequest(b"", 1, 0, 1), None),
        (ListRequest(b"", 0, 0, 1), ListRequest(b"", 0, 0, 0)),
        (TimeRangeRequest(b"", "default", 1, 2, 0, 1), TimeRangeRequest(b"", "default", 1, 2, 0, 0)),
        (StateRequest(b"", "default", 0, 2), StateRequest(b"", "default", 0, 1)),
        (PostRequest(b"", (TEXT.hash, GONE.hash), 1), None),
        (PostRequest(b"", (TEXT.hash, UNKNOWN, GONE.hash), 1), PostRequest(b"", (UNKNOWN,), 0)),
    ]
    async with listening([TEXT, GONE, ANN.delete(GONE)], relays=True) as (node, address):
        peer, other = await ByHand.connect(address), await ByHand.connect(address)
        link = await peer.known_to(node)
        await other.answer(ListRequest(b"", 0, 0))  # requests are forwarded to peers that have sent a message
        routes = node.parts.serving.routes
        for number, (request, forwarded) in enumerate(cases):
            asked = request._replace(request_id=peer.new_id())
            peer.send(asked)
            await until(lambda number=number: link.received_requests == number + 1)  # type: ignore[misc] # the argument has its default
            if forwarded is None:
                answers = await peer.concluded(asked.request_id)
                if isinstance(request, PostRequest):
                    assert [part.posts for part in answers if isinstance(part, PostResponse)] == [(TEXT.raw,), ()]
            else:
                found = await other.receive()
                assert found is not None
                assert found._replace(request_id=b"") == forwarded
                assert [route.exchange.request for route in routes.values()][-1] == asked

"""The command `reconcile`: reconcile once with another store, or audit it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from cablestore.chat.hosting import with_stored_channels
from cablestore.cli.options import common_options
from cablestore.cli.output import Output, size
from cablestore.cli.serve import join_as_invited
from cablestore.cli.serve_options import AddressType, invited, peer_options, settings_of
from cablestore.cli.service import fast_loop, run_on_loop
from cablestore.cli.stores import open_to_sync
from cablestore.cli.values import Moment
from cablestore.peers import Address, Node, ReconcileReport
from cablestore.plurals import counted

_OMITTED_FIELDS: Final = ("talks", "unstored", "differing_ms", "is_by_design")
"""Fields of a report that the JSON output omits."""


@click.command(context_settings={"auto_envvar_prefix": "CABLESTORE_RECONCILE"})
@click.argument("address", metavar="HOST:PORT", type=AddressType(to_connect=True))
@click.option(
    "--after",
    "after_ms",
    type=Moment(),
    default=0,
    help="Reconcile only posts dated since this time, such as 2024-01-31 or 90d.",
)
@click.option("--cable", "over_cable", is_flag=True, help="HOST:PORT is a Cable port, not a reconciliation port.")
@click.option(
    "--audit",
    "is_audit",
    is_flag=True,
    help="Search for differences that reconciliation cannot find, and do not transfer posts.",
)
@peer_options
@common_options
def reconcile(
    path: Path,
    out: Output,
    address: Address,
    after_ms: int,
    over_cable: bool,
    is_audit: bool,
    create: bool,
    **chosen: Any,
) -> int:
    """Reconcile once with another store.

    This store and the store of the peer at HOST:PORT exchange the posts that either of them lacks. The cost depends on
    the difference of the stores, not on their sizes. Exit status 1 if an audit finds a difference. The peers in an
    invitation are ignored. Environment variables such as CABLESTORE_RECONCILE_CABAL_KEY also set options.

    Example: `cablestore reconcile peer.example:13334 --cabal-key @cabal-key`
    """
    invitation = invited(chosen)
    settings = settings_of(chosen)
    with open_to_sync(path, out, create=create) as store:
        join_as_invited(store, invitation, out)
        settings = with_stored_channels(store, settings)
        with out.progress("reconciling", None) as progress:

            async def work() -> ReconcileReport:
                async with Node(store, settings) as node:
                    return await node.reconcile_once(
                        address, after_ms=after_ms, over_cable=over_cable, is_audit=is_audit, progress=progress
                    )

            report = run_on_loop(work, fast_loop)
    if is_audit:
        return _print_audit(out, report)
    _print(out, report)
    return 0


def _print(out: Output, report: ReconcileReport) -> None:
    compared = report.sent_comparing_size_bytes + report.received_comparing_size_bytes
    text = (
        f"received {counted(report.posts_received, 'new post')}, sent {report.posts_sent:,} in {report.seconds:.1f} s: "
        f"{counted(report.rounds, 'round')}, {size(compared)} to compare, {size(report.received_posts_size_bytes)} of "
        f"posts received, {size(report.sent_posts_size_bytes)} sent"
    )
    for count, what in (
        (report.refused, "rejected"),
        (report.missing, "offered but not received"),
        (report.unasked, "received without a request"),
    ):
        text += f"; {count:,} {what}" if count else ""
    out.say(text, **_fields(report))


def _print_audit(out: Output, report: ReconcileReport) -> int:
    for from_ms, until_ms in report.differing_ms:
        out.say(f"✗ from {out.when(from_ms)} to {out.when(until_ms)}", from_ms=from_ms, until_ms=until_ms)
    found = (
        f"found {counted(report.here_only, 'post')} only in this store, {report.there_only:,} only in the other store"
    )
    if report.is_by_design:
        verdict = "posts in the ranges above were crafted so that reconciliation cannot find their difference"
    elif report.differing_ms:
        verdict = "posts in the ranges above differ, and reconciliation does not find the difference"
    else:
        verdict = "reconciliation finds every difference"
    fields = _fields(report) | {"differing_ranges": len(report.differing_ms), "by_design": report.is_by_design}
    out.say(f"{found}; {verdict}", **fields)
    return 1 if report.differing_ms else 0


def _fields(report: ReconcileReport) -> dict[str, Any]:
    """Return the counts for JSON."""
    fields = asdict(report) | {"seconds": round(report.seconds, 3)}
    return {name: value for name, value in fields.items() if name not in _OMITTED_FIELDS}


COMMANDS: Final = (reconcile,)

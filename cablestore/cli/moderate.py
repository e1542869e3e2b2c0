"""Commands that moderate: role, hide, unhide, drop, undrop, block, unblock, moderation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

import click

from cablestore.cli.channel_argument import complete_channel
from cablestore.cli.dates import note_date
from cablestore.cli.moderation_texts import (
    UserNames,
    action_filter,
    change_fields,
    change_text,
    decision_fields,
    seed_rows,
    unchanged_text,
)
from cablestore.cli.options import all_of, full_targets, full_users, stored_channel, with_store, with_store_to_read
from cablestore.cli.output import Output, safe
from cablestore.cli.values import moderation_seed
from cablestore.moderation import Decision, UserRole
from cablestore.plurals import counted
from cablestore.protocol.body import Moderation, Unblock
from cablestore.store.dating import utc
from cablestore.store.moderator import Effect
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore

_ROLES: Final = {role.name.lower(): role for role in sorted(UserRole, reverse=True)}

_UNDONE: Final[dict[str, tuple[Literal["hide", "block"], str]]] = {
    "unhide": ("hide", "hidden"),
    "unblock": ("block", "blocked"),
}
"""Commands that undo an action, with the kind of the action and the state that it causes."""
_act_options: Final = all_of(
    click.option(
        "--reason", default="", help="Reason of up to 128 characters, visible to everyone who receives the action."
    ),
    click.option("--private", is_flag=True, help="Apply the action only for yourself. The action is never sent."),
    click.option("--dry-run", is_flag=True, help="Print what would change for you, and write nothing."),
    with_store,
)
"""Options of all actions."""


def _context_option(meaning: str) -> Callable[[Any], Any]:
    return click.option("--channel", shell_complete=complete_channel, help=meaning)


_in_channel: Final = _context_option("Only in this channel [default: everywhere].")
_users: Final = click.argument("users", nargs=-1, required=True, metavar="USER...")
_targets: Final = click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
_may_be_targets: Final = click.argument("targets", nargs=-1, metavar="[TARGET...]")


def _act(function: Callable[..., Effect]) -> Callable[..., None]:
    """Return a command that runs a moderation function, removes dropped posts, and prints the changes."""

    def command(store: CableStore, out: Output, *, dry_run: bool, **params: Any) -> None:
        if params.get("channel") is not None:
            params["channel"] = stored_channel(store, params["channel"])
        effect = function(store, **params, dry_run=dry_run, skip_repeated=True)
        if not dry_run and store.moderation.is_sweeping:
            with out.progress("removing dropped posts", None) as progress:
                store.moderation.sweep(progress)
        _print(store, out, effect, function.__name__, dry_run=dry_run)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def _print(store: CableStore, out: Output, effect: Effect, act: str, *, dry_run: bool) -> None:
    names = UserNames(store)
    for change in () if out.as_json else effect.changes:
        out.say(change_text(change, names))
    if dry_run:
        out.note("dry run: nothing was written")
    for target in effect.unchanged:
        out.note(unchanged_text(act, target, names))
    if not effect.changes and not effect.dropped_posts and not effect.unchanged:
        out.note("nothing changes for you")
    for post in effect.posts[-1:]:
        note_date(store, out, post)
        if isinstance(post.body, Unblock):
            _note_drops(store, out, names, post.body.recipients)
        if isinstance(post.body, Unblock | Moderation) and post.is_local_only:
            _note_public(store, out, names, act, post.body.recipients)
    if effect.dropped_posts:
        out.note(f"{'would remove' if dry_run else 'removed'} {counted(effect.dropped_posts, 'post')} from this store")
    if out.as_json:
        out.say(
            "",
            posts=[post.hash.hex() for post in effect.posts],
            changes=[change_fields(change) for change in effect.changes],
            dropped_posts=effect.dropped_posts,
            unchanged=[target.hex() for target in effect.unchanged],
            dry_run=dry_run,
        )


def _note_drops(store: CableStore, out: Output, names: UserNames, users: Iterable[bytes]) -> None:
    """Print a note for each user whose posts are still dropped up to a time in the future."""
    for user in users:
        drop = store.moderation.user_drop(user)
        if drop is not None and drop.until_ms is not None and drop.until_ms > system_clock_ms():
            name, until = safe(names.of(user)), utc(drop.until_ms)
            out.note(f"posts of {name} dated up to {until} are still dropped. Use `unblock --undrop` to accept them")


def _note_public(store: CableStore, out: Output, names: UserNames, act: str, targets: Iterable[bytes]) -> None:
    """After the private undo `act`, print a note for each target to which a public action of the user still applies."""
    if act not in _UNDONE:
        return
    kind, state = _UNDONE[act]
    for target in targets:
        if any(not own.is_private for own in store.moderation.own_acts(kind, target)):
            name = safe(names.of(target))
            out.note(
                f"{name} is still {state} for others because of your public action. Use `{act}` without --private to "
                "undo it"
            )


# --- actions --------------------------------------------------------------------------------------

_on_targets: Final = all_of(_targets, _in_channel, _act_options, _act)


@click.command()
@click.argument("user", metavar="USER")
@click.argument("role", type=click.Choice(list(_ROLES)))
@_in_channel
@_act_options
@_act
def role(store: CableStore, user: str, role: str, **how: Any) -> Effect:
    """Assign a role to USER.

    Admins and mods moderate for you, and admins assign roles to others. The role user removes a role, including a role
    that an admin assigned. USER is a name, or the first digits of a public key.

    Example: `cablestore role ann mod --channel garden`
    """
    [key] = full_users(store, [user])
    return store.moderation.set_role(key, _ROLES[role], **how)


@click.command()
@_on_targets
def hide(store: CableStore, targets: tuple[str, ...], **how: Any) -> Effect:
    """Hide all messages of a user, or single messages. Hidden messages remain in the store.

    A TARGET is a user or a message. Identify a user by a name or the first digits of a public key, and a message by the
    first digits of its hash.

    Example: `cablestore hide bob --reason spam`
    """
    users, posts = full_targets(store, targets)
    return store.moderation.hide(users=users, posts=posts, **how)


@click.command()
@_on_targets
def unhide(store: CableStore, targets: tuple[str, ...], **how: Any) -> Effect:
    """Show hidden messages again.

    Use --private to undo a `hide --private`. A TARGET is a user or a message, as for `hide`.

    Example: `cablestore unhide bob`
    """
    users, posts = full_targets(store, targets)
    return store.moderation.unhide(users=users, posts=posts, **how)


@click.command()
@_may_be_targets
@_context_option("Drop this channel.")
@_act_options
@_act
def drop(store: CableStore, targets: tuple[str, ...], channel: str | None, **how: Any) -> Effect:
    """Remove posts from this store, and reject them later.

    Drop single posts, all posts of a user, or a channel. Unlike a deletion, a drop applies only to you and the users
    for whom you moderate. `undrop` undoes a drop. A drop of a user applies only to you, as `block --drop --private`
    does. A TARGET is a user or a post, as for `hide`.

    Example: `cablestore drop 5ab64a0c --reason illegal`
    """
    _require_one(targets, channel)
    users, posts = full_targets(store, targets)
    return store.moderation.drop(users=users, posts=posts, channel=channel, **how)


@click.command()
@_may_be_targets
@_context_option("Undrop this channel.")
@_act_options
@_act
def undrop(store: CableStore, targets: tuple[str, ...], channel: str | None, **how: Any) -> Effect:
    """Accept dropped posts again. The node requests them from peers.

    `cablestore moderation` lists dropped targets with complete hashes and public keys. A TARGET is
    a user or a post, as for `hide`.

    Example: `cablestore undrop --channel spam-channel`
    """
    _require_one(targets, channel)
    users, posts = full_targets(store, targets)
    return store.moderation.undrop(users=users, posts=posts, channel=channel, **how)


def _require_one(targets: tuple[str, ...], channel: str | None) -> None:
    if bool(targets) is (channel is not None):
        raise click.UsageError("expected either TARGET arguments or --channel")


@click.command()
@_users
@click.option("--drop", is_flag=True, help="Also remove the stored posts of the users.")
@click.option("--notify", is_flag=True, help="Notify the users.")
@_act_options
@_act
def block(store: CableStore, users: tuple[str, ...], **how: Any) -> Effect:
    """Reject posts of USERS, and do not exchange posts with them.

    Peers that receive the block do not send your posts to the users, nor their posts to you. With --private, the block
    only rejects their posts in this store. USERS are names, or first digits of public keys.

    Example: `cablestore block bob --drop --reason harassment`
    """
    return store.moderation.block(full_users(store, users), **how)


@click.command()
@_users
@click.option("--undrop", is_flag=True, help="Also accept again the posts that --drop removed.")
@_act_options
@_act
def unblock(store: CableStore, users: tuple[str, ...], **how: Any) -> Effect:
    """Accept the posts of USERS again. Use --private to undo a `block --private`.

    Example: `cablestore unblock bob --undrop`
    """
    return store.moderation.unblock(full_users(store, users), **how)


# --- actions that apply ---------------------------------------------------------------------------


@click.command()
@_context_option("List only actions that apply in this channel.")
@click.option("--history", is_flag=True, help="List all actions of your moderators, with their results.")
@click.option(
    "--seed",
    type=moderation_seed,
    metavar="@FILE|HEX",
    help="Join with this moderation seed: its users become admins or mods.",
)
@click.option(
    "--revoke-seed", is_flag=True, help="Revoke the moderation seed. Earlier actions of its users still apply."
)
@click.option("--dry-run", is_flag=True, help="With --seed or --revoke-seed: print what would change.")
@with_store_to_read
def moderation(
    store: CableStore,
    out: Output,
    channel: str | None,
    history: bool,
    seed: str | None,
    revoke_seed: bool,
    dry_run: bool,
) -> None:
    """List moderators, and hidden, dropped and blocked targets.

    The list contains the actions that apply to you, with author, time and reason.

    Example: `cablestore moderation --history`
    """
    if seed is not None or revoke_seed:
        if seed is not None and revoke_seed:
            raise click.UsageError(
                "--seed cannot be combined with --revoke-seed. Revoke the old seed first, then run the command again "
                "with --seed only"
            )
        moderator = store.moderation
        effect = (
            moderator.revoke_seed(dry_run=dry_run) if seed is None else moderator.join_with_seed(seed, dry_run=dry_run)
        )
        _print(store, out, effect, "moderation", dry_run=dry_run)
        return
    channel = None if channel is None else stored_channel(store, channel)
    names = UserNames(store)
    rows = [decision_fields(judged, names, out, with_result=history) for judged in _judged(store, channel, history)]
    if store.moderation.seed is not None and not history:
        rows = [*seed_rows(store.moderation.seed, names, out), *rows]
    columns = ("what", "target", "channel", "by", "time", "reason", *(("result",) if history else ()))
    out.table(columns, rows)
    if not rows:
        out.note("no moderation actions found")


def _judged(store: CableStore, channel: str | None, history: bool) -> Iterator[Decision]:
    """Yield the actions of `channel`, or if None, of the whole cabal and all channels. Include past ones if `history`."""
    read: Callable[[str | None], Iterable[Decision]] = (
        store.moderation.history if history else store.moderation.in_force
    )
    if channel is not None:
        yield from filter(action_filter(history), read(channel))
        return
    for context in (None, *store.moderation.contexts()):
        yield from (judged for judged in filter(action_filter(history), read(context)) if judged.act.channel == context)


COMMANDS: Final = (role, hide, unhide, drop, undrop, block, unblock, moderation)

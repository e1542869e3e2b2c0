"""Settings and addresses from the options of `serve`, read at the start and again on SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from cablestore.chat.hosting import RunningNode
from cablestore.cli.inspect_options import inspect_settings_of
from cablestore.cli.maintenance_options import maintenance_of
from cablestore.cli.sections import ARGUMENTS
from cablestore.cli.serve_options import CHANGEABLE, invited, settings_of
from cablestore.cli.settings_file import SettingsError
from cablestore.errors import CableStoreError
from cablestore.inspect.settings import InspectSettings
from cablestore.maintenance import Maintenance, MaintenancePlan
from cablestore.moderation import Seed
from cablestore.peers import Address, Invitation, Node, NodeSettings, descriptors

_LOG: Final = logging.getLogger("cablestore.node")


class ServePlan(NamedTuple):
    """Settings and addresses of a run of `serve`."""

    settings: NodeSettings
    listen: tuple[Address, ...]
    connect: tuple[Address, ...]
    metrics: Address | None
    reconcile_listen: tuple[Address, ...] = ()
    reconcile_connect: tuple[Address, ...] = ()
    invitation: Invitation | None = None
    moderation_seed: str | None = None
    maintenance: MaintenancePlan = MaintenancePlan()
    inspect: InspectSettings | None = None


def plan_of(params: Mapping[str, Any], known: Invitation | None = None) -> ServePlan:
    """Return the plan for the parameters of `serve`.

    `known` is an invitation that was already read from standard input. Raises SettingsError, UsageError or
    ArgumentError for invalid or conflicting parameters.
    """
    chosen = dict(params)
    if (chosen["reconcile_listen"] or chosen["reconcile_connect"]) and not chosen["reconcile"]:
        raise SettingsError("--reconcile-listen and --reconcile-connect need --reconcile")
    invitation = invited(chosen, known)
    connect, seed = chosen["connect"], chosen["moderation_seed"]
    if invitation is not None:
        connect = tuple(dict.fromkeys((*connect, *invitation.peers)))
        seed = _seed_of(invitation, seed)
    plan = ServePlan(
        settings_of(chosen),
        chosen["listen"],
        connect,
        chosen["metrics"],
        chosen["reconcile_listen"],
        chosen["reconcile_connect"],
        invitation,
        seed,
        maintenance_of(chosen),
        inspect_settings_of(chosen),
    )
    if not (plan.listen or plan.connect or plan.reconcile_listen or plan.reconcile_connect):
        raise SettingsError("missing address: use --listen 127.0.0.1:13333, --connect HOST:PORT, or both")
    return plan


def _seed_of(invitation: Invitation, text: str | None) -> str | None:
    """Return the seed of an invitation, else `text`, which may be None. Raises SettingsError if both seeds differ."""
    if not invitation.seed:
        return text
    if text is not None and Seed.read_hex(text, 0).write() != invitation.seed:
        raise SettingsError("the moderation seed differs from the seed in the invitation. Use only one of them")
    return invitation.seed.hex()


def log_level_of(params: Mapping[str, Any]) -> str:
    """Return the minimum log level."""
    return str(params["log_level"] or ("warning" if params["quiet"] else "info"))


# --- SIGHUP ---------------------------------------------------------------------------------------


class SettingsReloader:
    """Reloader of the settings of a running `serve`, for SIGHUP."""

    def __init__(self, ctx: click.Context, plan: ServePlan) -> None:
        self._ctx = ctx
        self._arguments: Final[list[str]] = ctx.meta[ARGUMENTS]
        self._params = dict(ctx.params)
        self.plan = plan

    def reload(self, node: Node, watched: RunningNode, maintenance: Maintenance) -> None:
        """Read the policy and the settings again, and apply the settings that can change.

        Log the other changes, or an error.
        """
        _reload_policy(node)
        try:
            params = self._read()
            plan = plan_of(params, self.plan.invitation)
        except (click.ClickException, CableStoreError) as error:
            reason = error.format_message() if isinstance(error, click.ClickException) else str(error)
            _LOG.warning("cannot reload the settings: the old settings remain active", extra={"reason": reason})
            return
        different = {name for name, value in params.items() if value != self._params.get(name)}
        if plan.connect != self.plan.connect:  # the file of an invitation may contain other peers
            different.add("connect")
        changed = different & CHANGEABLE
        self._params |= {name: params[name] for name in changed}
        self._apply(plan, node, watched)
        maintenance.change(plan.maintenance)
        fields = {"changed": _options(changed), "needs_restart": _options(different - changed)}
        _LOG.warning("settings reloaded", extra=fields)  # logged at any log level

    def _read(self) -> dict[str, Any]:
        command = self._ctx.command
        return command.make_context(self._ctx.info_name, list(self._arguments), parent=self._ctx.parent).params

    def _apply(self, plan: ServePlan, node: Node, watched: RunningNode) -> None:
        logging.getLogger("cablestore").setLevel(log_level_of(self._params).upper())
        node.change_settings(node.settings.with_changes_of(plan.settings))
        descriptors.allow(plan.settings.max_peers)
        for port, before, now in (
            (node, self.plan.connect, plan.connect),
            (node.reconcile_port, self.plan.reconcile_connect, plan.reconcile_connect),
        ):
            for address in set(before) - set(now):
                port.disconnect(address)
            for address in set(now) - set(before):
                port.keep_connected(address)
        watched.change_peers(node, plan.connect, plan.reconcile_connect)
        self.plan = self.plan._replace(connect=plan.connect, reconcile_connect=plan.reconcile_connect)


def _reload_policy(node: Node) -> None:
    try:
        is_changed = node.reload_policy()
    except CableStoreError as error:
        _LOG.warning("cannot reload the policy: the old policy remains active", extra={"reason": str(error)})
        return
    if is_changed:
        fields = {"path": str(node.parts.context.policies.path)}
        _LOG.warning("policy reloaded", extra=fields)  # logged at any log level


def _options(params: set[str]) -> list[str]:
    return sorted(name.replace("_", "-") for name in params)

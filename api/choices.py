"""How a turn runs: what was asked for, what the session says, what the stack can do."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.bodies import (
    Capabilities,
    Choices,
    Durability,
    Permissions,
    Session,
    SessionCreate,
    SessionPatch,
)
from contracts.egress import Egress
from contracts.errors import InvalidInput, UnknownHarness, UnknownProvider, UnsupportedChoice


@dataclass(frozen=True)
class Chosen:
    harness: str
    provider: str
    model: str | None
    reasoning: str | None
    permissions: Permissions
    durability: Durability = "mount"


def storable(field: str, text: str | None) -> None:
    """Raises: InvalidInput for U+0000, which PostgreSQL's text cannot hold."""
    if text is not None and "\0" in text:
        raise InvalidInput(f"{field} contains the character U+0000.", hint="Leave it out.")


def choose(asked: Choices, fallback: Session | Chosen, capabilities: Capabilities) -> Chosen:
    """What to run with; `fallback` fills in what was left out.

    Raises: UnknownHarness, UnknownProvider, UnsupportedChoice, InvalidInput.
    """
    storable("model", asked.model)
    storable("reasoning", asked.reasoning)
    harness = asked.harness or fallback.harness
    # a model and an effort are words of their harness: they do not go to another one
    same = harness == fallback.harness
    chosen = Chosen(
        harness=harness,
        provider=asked.provider or fallback.provider,
        model=asked.model or (fallback.model if same else None),
        reasoning=asked.reasoning or (fallback.reasoning if same else None),
        permissions=asked.permissions or fallback.permissions,
        durability=asked.durability or fallback.durability,
    )
    _check(chosen, capabilities)
    return chosen


def check_egress(
    asked: SessionCreate | SessionPatch, before: Egress, provider: str, capabilities: Capabilities
) -> None:
    """Raises: UnsupportedChoice, InvalidInput."""
    if asked.egress is None and asked.egress_hosts is None:
        return
    network = {each.name: each.network for each in capabilities.providers}.get(provider, "gateway")
    if network == "provider":
        raise UnsupportedChoice(
            f"Sandboxes on {provider} have the network of {provider}, not the gateway's.",
            hint="Leave egress out, and limit the network there; or use `local` or `docker`.",
        )
    egress = asked.egress or before
    if asked.egress_hosts and egress != "allow":
        raise InvalidInput(
            f"egress_hosts are for egress `allow`, and the session's is `{egress}`.",
            hint="Set egress to `allow`, or leave the hosts out.",
        )


def _check(chosen: Chosen, capabilities: Capabilities) -> None:
    harnesses = {harness.name: harness for harness in capabilities.harnesses}
    if chosen.harness not in harnesses:
        raise UnknownHarness(
            f"There is no harness {chosen.harness[:100]!r}.",
            hint=f"Use one of: {', '.join(sorted(harnesses))}.",
            known=sorted(harnesses),
        )
    providers = {provider.name: provider for provider in capabilities.providers}
    if chosen.provider not in providers:
        raise UnknownProvider(
            f"There is no provider {chosen.provider[:100]!r}.",
            hint=f"Use one of: {', '.join(sorted(providers))}.",
            known=sorted(providers),
        )
    provider = providers[chosen.provider]
    if not provider.available:
        raise UnsupportedChoice(
            f"The provider {provider.name} is not available: {provider.reason}",
            hint="Choose another provider, or give this one what it needs.",
        )
    if chosen.permissions == "ask" and not harnesses[chosen.harness].can_ask:
        raise UnsupportedChoice(
            f"The harness {chosen.harness} cannot ask for permission.",
            hint="Use permissions `auto`, or a harness that can ask.",
        )

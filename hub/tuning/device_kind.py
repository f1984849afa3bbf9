"""A checkpoint orders programs of one kind of device: what it reads of a GPU's programs no CPU's has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...zoo.features import DeviceKindError, get_schema

if TYPE_CHECKING:
    from ...zoo.devices import Device
    from ...zoo.models import Checkpoint


def require_kind(checkpoint: Checkpoint, device: Device) -> None:
    """Refuse a checkpoint of the other kind of device.

    Args:
        checkpoint: whose feature schema decides.
        device: whose programs it is to score.

    Raises:
        DeviceKindError: one is for CPUs, the other a GPU.
    """
    schema = get_schema(checkpoint.config.feature_schema)
    if schema.kind != device.kind:
        raise DeviceKindError(
            f"{checkpoint.config.name} reads {schema.name}, but the programs are for {device.name}, a {device.kind}",
            remedy=f"choose a checkpoint of a {device.kind} family (`tchub list --kind {device.kind}`)",
            schema=schema.name,
            device=device.name,
        )

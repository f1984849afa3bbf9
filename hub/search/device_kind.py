"""A checkpoint orders programs of one kind of device: what it reads of a GPU's programs no CPU's has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    _require(checkpoint, device.name, device.kind)


def require_target(checkpoint: Checkpoint, target: Any) -> None:
    """As `require_kind`, of a `tvm.target.Target`, which need not be that of a known device."""
    _require(checkpoint, f"the target {target.kind.name}", "gpu" if "gpu" in target.keys else "cpu")


def _require(checkpoint: Checkpoint, device: str, kind: str) -> None:
    schema = get_schema(checkpoint.config.feature_schema)
    if schema.kind != kind:
        raise DeviceKindError(
            f"{checkpoint.config.name} reads {schema.name}, but the programs are for {device}, a {kind}",
            remedy=f"choose a checkpoint of a {kind} family (`tchub list --kind {kind}`)",
            schema=schema.name,
            device=device,
        )

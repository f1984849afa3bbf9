"""The parts of TVM that MetaSchedule loads lazily; the science needs them quickly too, so it is done there."""

from ...zoo.tvm_import import import_tensor_intrinsics

__all__ = ["import_tensor_intrinsics"]

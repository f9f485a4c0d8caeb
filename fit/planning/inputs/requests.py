"""The fields of shape and mesh that a user fixes."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class MeshRequest:
    """The fields of the mesh that the user fixes: None where the plan chooses.

    Attributes:
      expert, model: devices of these axes.
      remat: as config.remat.
    """

    expert: int | None = None
    model: int | None = None
    remat: str | None = None


@dataclasses.dataclass(frozen=True)
class ShapeRequest:
    """The fields of the model to build that the user fixes.

    Attributes:
      fixed: Fields of the architecture that the user gives.
      fixed_mesh: Fields of the mesh that the user gives.
      family: Whether models are built like a published one.
    """

    fixed: frozenset[str] = frozenset()
    fixed_mesh: MeshRequest = MeshRequest()
    family: bool = False

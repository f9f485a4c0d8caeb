"""The fields of shape and mesh that a user fixes."""

import dataclasses
import math


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

    @property
    def is_given(self) -> bool:
        """Whether the user fixes any."""
        return self != MeshRequest()

    @property
    def with_defaults(self) -> tuple[int, int, str]:
        """(expert, model, remat) of a mesh that is not chosen: one of data alone, and full remat, where not fixed."""
        expert = 1 if self.expert is None else self.expert
        model = 1 if self.model is None else self.model
        remat = "full" if self.remat is None else self.remat
        return expert, model, remat

    def most_chips(self, count: int, devices: int) -> int:
        """The most of `count` chips, of so many devices each, that a mesh which is not chosen divides; 0 for none."""
        expert, model, _ = self.with_defaults
        together = math.lcm(expert * model, devices) // devices
        return count // together * together


@dataclasses.dataclass(frozen=True)
class ShapeRequest:
    """The fields of the model to build that the user fixes.

    Attributes:
      fixed: Fields of the architecture that the user gives.
      fixed_mesh: Fields of the mesh that the user gives.
      like_published: Whether models are built like a published one.
      is_paper: Whether models have whole blocks and heads of the paper's shape, on a mesh that is not chosen: else
        widths, heads, experts and meshes that hardware likes are.
    """

    fixed: frozenset[str] = frozenset()
    fixed_mesh: MeshRequest = MeshRequest()
    like_published: bool = False
    is_paper: bool = False


PAPER_SHAPE = ShapeRequest(is_paper=True)

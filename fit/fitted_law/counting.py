"""How a law counts the parameters of models: with the vocabulary of its runs, or without embedding and head.

A larger vocabulary has a larger embedding and head, but hardly another loss. So a law predicts a model as if it had the
vocabulary of the law's runs. The cost of a model follows from its real vocabulary.
"""

import dataclasses
from typing import Self

import numpy as np

from fit.aliases import Array, Numbers
from fit.fitted_law.model_fields import are_tied, positive_numbers
from fit.fitted_law.models import Models
from fit.model import hardware
from fit.model.architecture import PAPER, Architecture
from fit.table.column_guesses import is_without_embedding
from fit.table.table import Table

COUNTS = ("n_active", "n_total")


@dataclasses.dataclass(frozen=True)
class Counting:
    """How a law counts parameters.

    Attributes:
      vocab_size: The vocabulary with which it counts models; None where it is not known, and counts stay as they are.
      as_they_are: Vocabularies of models whose counts stay as they are: those of its runs, padded or not.
      embedding: Whether embedding and head count.
    """

    vocab_size: int | None
    as_they_are: tuple[int, ...]
    embedding: bool

    @classmethod
    def of(cls, models: Models, is_published: bool, embedding: bool) -> Self:
        """How a law counts that was fitted to these models.

        Args:
          models: The models of its runs.
          is_published: Whether it is a paper's. Where that does not say its vocabulary, it is that which plans assume.
          embedding: Whether embedding and head count.
        """
        vocab_size = models.vocab_size
        if vocab_size is None and is_published:
            vocab_size = PAPER.vocab_size
        as_they_are = [round(float(size)) for size in models.differing.get("vocab_size", ())]
        if vocab_size is not None:
            as_they_are += [vocab_size, hardware.padded(vocab_size)]
        return cls(vocab_size, tuple(as_they_are), embedding)

    def with_vocabulary(self, architecture: Architecture) -> Architecture:
        """The architecture with the vocabulary that the law counts."""
        if self.vocab_size is None or architecture.vocab_size in self.as_they_are:
            return architecture
        return dataclasses.replace(architecture, vocab_size=self.vocab_size)

    def extra_rows(self, architecture: Architecture) -> int:
        """Rows of embedding and head beyond those that the law counts; negative where a model has fewer."""
        return architecture.embedding_and_head_rows - self.with_vocabulary(architecture).embedding_and_head_rows

    def uncounted_rows(self, architecture: Architecture) -> int:
        """Rows of embedding and head that the law does not count: the extra ones, or all if it counts neither."""
        return self.extra_rows(architecture) if self.embedding else architecture.embedding_and_head_rows

    def counted(self, architecture: Architecture, n_parameters: Numbers, d_model: Numbers) -> Numbers:
        """Parameters of models as the law counts them. n_parameters: active or all, with embedding and head."""
        return n_parameters - self.uncounted_rows(architecture) * d_model

    def of_table(self, table: Table, columns: dict[str, Array]) -> dict[str, Array]:
        """Columns of a table of models, with their parameters counted as the law counts them.

        Args:
          table: The models; unless vocab_size and d_model are known of all, their parameters stay as they are. Else
            they include embedding and head, unless their columns' names say otherwise.
          columns: {column: values [n]} that the law reads.
        """
        vocabularies = positive_numbers(table, "vocab_size")
        widths = positive_numbers(table, "d_model")
        if vocabularies is None or widths is None:
            return columns
        uncounted = np.zeros(len(table))  # of counts that include embedding and head
        left_out = np.zeros(len(table))  # by counts without them, of what the law counts
        for i, (vocab_size, is_tied) in enumerate(zip(vocabularies, are_tied(table), strict=True)):
            architecture = Architecture(vocab_size=round(vocab_size), tied=bool(is_tied))
            uncounted[i] = self.uncounted_rows(architecture) * widths[i]
            if self.embedding:
                left_out[i] = self.with_vocabulary(architecture).embedding_and_head_rows * widths[i]
        counted = dict(columns)
        for name in columns.keys() & set(COUNTS):
            if is_without_embedding(table.names.get(name, name)):
                counted[name] = columns[name] + left_out
            else:
                counted[name] = columns[name] - uncounted
        return counted

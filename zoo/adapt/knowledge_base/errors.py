"""What can go wrong when corpora are added to a knowledge base."""

from __future__ import annotations

from ...errors import TchubError


class KnowledgeBaseError(TchubError):
    """Any knowledge base or corpus that do not go together."""


class NotAKnowledgeBaseError(KnowledgeBaseError):
    """The checkpoint is an ordinary one, or it does not say what it has learnt; fields: name, arch."""


class LearntAlreadyError(KnowledgeBaseError):
    """The corpus was learnt before, or is named twice; fields: corpus, version."""


class NotLearntError(KnowledgeBaseError):
    """A corpus that is to judge what is forgotten was never learnt; fields: corpus."""

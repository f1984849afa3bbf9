"""A server on loopback that speaks the Hugging Face Hub's protocol, for the real huggingface_hub client.

It holds repositories in memory: commits, branches, tags, pull requests, large-file storage on a second host, access
tokens, and the check of the repositories that a card names. Faults are injected while it runs. Xet storage is not
spoken; a client that has `hf_xet` uploads by it unless HF_HUB_DISABLE_XET is set.
"""

from .server import running
from .state import HubServer, Repo

__all__ = ["HubServer", "Repo", "running"]

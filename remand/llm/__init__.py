"""Producers and validators that ask a language model, over any OpenAI-compatible server.

Importing this imports no HTTP client: that happens at the first call. No request is retried in here, nothing is
cached, and no prompt, reply or key is ever logged or put into an error.
"""

from .chat import ChatProducer
from .judge import ChatJudge
from .proposer import ChatProposer

__all__ = ["ChatJudge", "ChatProducer", "ChatProposer"]

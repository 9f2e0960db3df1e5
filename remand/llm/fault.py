"""Says in the log that code of the user's broke: where and by which type, never with which words."""

from __future__ import annotations

import logging
from typing import Final

_logger: Final = logging.getLogger("remand.llm")


def place(error: BaseException) -> str:
    """`module:function:line` of where `error` was raised, or `unknown`."""
    trace = error.__traceback__
    if trace is None:
        return "unknown"
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_name}:{trace.tb_lineno}"


def warn(where: str, what: str, error: BaseException) -> None:
    """Log that `what` of `where` raised `error`: its type and place alone."""
    _logger.warning("%s: %s raised %s at %s", where, what, type(error).__name__, place(error))

"""Between text and token ids: prompts, end-of-text ids, and an answer's text as it becomes certain."""

from mtp_daemon.engine.text.answer_text import AnswerText, Piece
from mtp_daemon.engine.text.prompt import Vocabulary, load_vocabulary

__all__ = ["AnswerText", "Piece", "Vocabulary", "load_vocabulary"]

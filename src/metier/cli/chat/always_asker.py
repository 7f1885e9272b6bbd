"""Asks about a call unless the person said "always" to the like of it in this conversation."""

from msgspec import Struct

from metier.cli.run.approval_dialog import Prompter
from metier.runtime.chat.chats import Chat, is_always, keep_always
from metier.runtime.questions.approval_questions import ApprovalQuestion, Reply


class AlwaysAsker(Struct, frozen=True):
    """An `Asker`. What it says by itself is on record with its reason."""

    chat: Chat
    prompter: Prompter

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        if await is_always(self.chat, question):
            return Reply(decision="approved", by=self.prompter.by, reason="Always in this conversation", remember=True)
        reply = await self.prompter(question)
        if reply is not None and reply.remember:
            await keep_always(self.chat, question)
        return reply

"""The scripted model: plain words in, the harness's own tool calls out; see docs/scripted-model.md.

protocol (anthropic, responses, chat) -> conversation -> model.answer -> reply -> protocol
"""
